/* Fork-join parallelism on torch's own thread pool.
 *
 * addnorm_parallel(body, context, n) calls body(context, thread, n) once on each of n threads and
 * returns when all have finished. A process has one OpenMP runtime, which torch loaded first, so
 * the kernels reuse torch's threads instead of competing with them.
 */
#ifndef ADDNORM_THREADS_H
#define ADDNORM_THREADS_H

#include <stddef.h>

typedef void addnorm_thread_body(void *context, int thread, int threads);

#ifdef ADDNORM_PTHREADS /* `make sanitize`: ThreadSanitizer reports libgomp's barriers as races */
#include <pthread.h>
struct addnorm_thread {
    addnorm_thread_body *body;
    void *context;
    int thread, threads;
};
static void *addnorm_start_thread(void *argument) {
    struct addnorm_thread *t = argument;
    t->body(t->context, t->thread, t->threads);
    return NULL;
}
static void addnorm_parallel(addnorm_thread_body *body, void *context, int threads) {
    struct addnorm_thread started[64];
    pthread_t ids[64];
    for (int t = 0; t < threads; t++) {
        started[t] = (struct addnorm_thread){body, context, t, threads};
        pthread_create(&ids[t], NULL, addnorm_start_thread, &started[t]);
    }
    for (int t = 0; t < threads; t++) pthread_join(ids[t], NULL);
}
#else
#include <omp.h>
static void addnorm_parallel(addnorm_thread_body *body, void *context, int threads) {
    if (threads < 2) {
        body(context, 0, 1); /* no OpenMP call: its threads do not survive a fork */
        return;
    }
#pragma omp parallel num_threads(threads)
    body(context, omp_get_thread_num(), omp_get_num_threads());
}
#endif

#endif
