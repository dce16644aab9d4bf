/* Four numbers of four rows as four numbers of four columns. */
#ifndef ADDNORM_SQUARES_H
#define ADDNORM_SQUARES_H

#include "vectors.h"

INLINE int64_t up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }
INLINE int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

INLINE four load4_f32(const f32 *from) {
    four v;
    memcpy(&v, from, sizeof v);
    return v;
}

INLINE four load4_bf16(const bf16 *from) {
    VECTOR(uint16_t, 4) h;
    memcpy(&h, from, sizeof h);
    return (four)(__builtin_convertvector(h, VECTOR(uint32_t, 4)) << 16);
}

#ifdef __clang__
#define MIX(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define MIX(a, b, ...) __builtin_shuffle(a, b, (VECTOR(int32_t, 4)){__VA_ARGS__})
#endif

INLINE void turn4(four v[4]) {
    const four a = MIX(v[0], v[1], 0, 4, 1, 5), b = MIX(v[2], v[3], 0, 4, 1, 5);
    const four c = MIX(v[0], v[1], 2, 6, 3, 7), d = MIX(v[2], v[3], 2, 6, 3, 7);
    v[0] = MIX(a, b, 0, 1, 4, 5), v[1] = MIX(a, b, 2, 3, 6, 7);
    v[2] = MIX(c, d, 0, 1, 4, 5), v[3] = MIX(c, d, 2, 3, 6, 7);
}

#endif
