/* A clock that steps, for one program: with LD_PRELOAD, what reads the time of day by libc is given the time plus page[0]
 * seconds. page[1] counts such readings, and page[2] those of the monotonic clock, which stays as it is. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static long nothing[3], *page = nothing;

__attribute__((constructor)) static void begin(void) {
    int file = open(getenv("KIT_CLOCK"), O_RDWR | O_CLOEXEC);
    void *mapped = mmap(NULL, sizeof nothing, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (mapped != MAP_FAILED) page = mapped;
    close(file);
}

static long shift(int which) {
    __atomic_add_fetch(&page[which], 1, __ATOMIC_RELAXED);
    return which == 1 ? __atomic_load_n(&page[0], __ATOMIC_RELAXED) : 0;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    long done = syscall(SYS_clock_gettime, clock, now);
    if (done == 0) now->tv_sec += shift(clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE ? 1 : 2);
    return done;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec time;
    clock_gettime(CLOCK_REALTIME, &time);
    *now = (struct timeval){time.tv_sec, time.tv_nsec / 1000};
    return 0;
}

time_t time(time_t *now) {
    struct timespec time;
    clock_gettime(CLOCK_REALTIME, &time);
    if (now) *now = time.tv_sec;
    return time.tv_sec;
}
