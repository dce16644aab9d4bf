/* All kernels at one instruction-set level: compiled once a level, with LEVEL its name and the flags
 * of the compiler its instructions. */
#include "levels.h"
#include "vectors.h"

#ifndef ROWS
#define ROWS 8 /* that are worked on together, */
#endif
#define NARROW 128 /* where they have no more features */
#define CHUNK 256  /* features whose draws are made at once */

#define X f32
#define F f32
#include "rows.h"
#undef F
#define F bf16
#include "rows.h"
#undef X
#define X bf16
#include "rows.h"

#define NAME_(level) addnorm_##level
#define NAME(level) NAME_(level)

const struct addnorm_level NAME(LEVEL) = {
    .forward = {forward_f32_f32, forward_bf16_bf16, forward_f32_bf16},
    .backward = {backward_f32_f32, backward_bf16_bf16, backward_f32_bf16},
    .drop = {drop_f32_f32, drop_bf16_bf16, drop_f32_bf16},
};
