"""The policy: when a contender may take a lease, how long it may believe that it holds it, and how a hold ends."""
