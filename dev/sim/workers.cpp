// The OS threads that blocks run on: they sleep between grids, so that a test program alone does
// not heat the machine.
#include "dev/sim/workers.h"
#include "dev/sim/runtime.h"
#include "dev/sim/sanitizers.h"

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>

namespace sim {
enum { MAX_WORKERS = 64 };

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t work_came = PTHREAD_COND_INITIALIZER, work_done = PTHREAD_COND_INITIALIZER;
static void (*job)(void *);
static void *job_argument;
// workers that exist; that shall still take the job; that have not finished it
static int started, wanted, working;

int worker_count() {
#if defined(SIM_TSAN) || defined(SIM_MSAN)
    return 1;
#else
    static const int count = [] {
        cpu_set_t set;
        int n = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
        if (const char *text = setting("SIM_THREADS")) n = atoi(text);
        return n < 1 ? 1 : n > MAX_WORKERS ? (int)MAX_WORKERS : n;
    }();
    return count;
#endif
}

static void *work(void *) {
    pthread_mutex_lock(&mutex);
    for (;;) {
        while (wanted == 0) pthread_cond_wait(&work_came, &mutex);
        wanted--;
        pthread_mutex_unlock(&mutex);
        job(job_argument);
        pthread_mutex_lock(&mutex);
        if (--working == 0) pthread_cond_signal(&work_done);
    }
    return nullptr;
}

static void start_workers(int count) {
    for (; started < count; started++) {
        pthread_t thread;
        if (pthread_create(&thread, nullptr, work, nullptr) != 0) fatal("cannot start a thread");
        pthread_detach(thread);
    }
}

void run_on_workers(int threads, void (*f)(void *), void *argument) {
    if (threads > 1) {
        start_workers(threads - 1);
        pthread_mutex_lock(&mutex);
        job = f, job_argument = argument;
        wanted = working = threads - 1;
        pthread_cond_broadcast(&work_came);
        pthread_mutex_unlock(&mutex);
    }

    f(argument);

    if (threads > 1) {
        pthread_mutex_lock(&mutex);
        // Workers that have not woken by now would find nothing left to do.
        working -= wanted;
        wanted = 0;
        while (working > 0) pthread_cond_wait(&work_done, &mutex);
        pthread_mutex_unlock(&mutex);
    }
}
} // namespace sim
