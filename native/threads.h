/* The same work on several threads at once, those of torch: OpenMP is one library in a process. */
#ifndef ADDNORM_THREADS_H
#define ADDNORM_THREADS_H

#include <stddef.h>

typedef void addnorm_share(void *given, int thread, int threads);

#ifdef ADDNORM_PTHREADS /* ThreadSanitizer does not understand libgomp: `make sanitize` has these */
#include <pthread.h>
struct addnorm_thread {
    addnorm_share *share;
    void *given;
    int thread, threads;
};
static void *addnorm_run_share(void *one) {
    struct addnorm_thread *t = one;
    t->share(t->given, t->thread, t->threads);
    return NULL;
}
static void addnorm_on_threads(addnorm_share *share, void *given, int threads) {
    struct addnorm_thread all[64];
    pthread_t ids[64];
    for (int t = 0; t < threads; t++) {
        all[t] = (struct addnorm_thread){share, given, t, threads};
        pthread_create(&ids[t], NULL, addnorm_run_share, &all[t]);
    }
    for (int t = 0; t < threads; t++) pthread_join(ids[t], NULL);
}
#else
#include <omp.h>
static void addnorm_on_threads(addnorm_share *share, void *given, int threads) {
    if (threads < 2) {
        share(given, 0, 1); /* without OpenMP, which does not survive a fork */
        return;
    }
#pragma omp parallel num_threads(threads)
    share(given, omp_get_thread_num(), omp_get_num_threads());
}
#endif

#endif
