"""The policy under every fault we can think of, on a virtual clock: schedules by the thousand, mutants, a model."""
