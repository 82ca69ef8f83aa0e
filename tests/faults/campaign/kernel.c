/* What the kernel is for the processes of one site (LD_PRELOAD): its wall clock is as many seconds off as the file
   $CAMPAIGN_CLOCK says, and it has no timers that send signals if there is a $CAMPAIGN_NO_TIMERS. libfaketime would
   change how clock_nanosleep(2) counts, too, which Python sleeps with. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const volatile long *off;

__attribute__((constructor)) static void begin(void) {
	const char *name = getenv("CAMPAIGN_CLOCK");
	int file = name ? open(name, O_RDONLY | O_CLOEXEC) : -1;
	void *page = file < 0 ? MAP_FAILED : mmap(0, sizeof *off, PROT_READ, MAP_SHARED, file, 0);
	if (file >= 0) close(file);
	if (page != MAP_FAILED) off = page;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
	int failed = syscall(SYS_clock_gettime, clock, now);
	if (!failed && off && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) now->tv_sec += *off;
	return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
	struct timespec at;
	clock_gettime(CLOCK_REALTIME, &at);
	now->tv_sec = at.tv_sec, now->tv_usec = at.tv_nsec / 1000;
	return 0;
}

time_t time(time_t *to) {
	struct timespec at;
	clock_gettime(CLOCK_REALTIME, &at);
	if (to) *to = at.tv_sec;
	return at.tv_sec;
}

int timer_create(clockid_t clock, struct sigevent *restrict event, timer_t *restrict timer) {
	int (*real)(clockid_t, struct sigevent *, timer_t *) = dlsym(RTLD_NEXT, "timer_create");
	if (real && !getenv("CAMPAIGN_NO_TIMERS")) return real(clock, event, timer);
	errno = ENOSYS;
	return -1;
}
