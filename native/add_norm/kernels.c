/* Dropout, add and norm at one instruction-set level.
 *
 * Compiled once per level, with LEVEL defined as its name and with the compiler flags of its
 * instructions. row_kernels.h is included once for each combination of dtypes.
 */
#include "add_norm/dropout_rng.h"
#include "add_norm/isa_levels.h"
#include "common/vectors.h"

#ifndef ROWS_AT_ONCE
#define ROWS_AT_ONCE 8 /* narrow rows that are processed together */
#endif
#define MAX_NARROW_DIM 128 /* features of a narrow row */
#define DRAW_CHUNK 256     /* features whose keep masks are drawn before they are used */

#define X f32
#define F f32
#include "add_norm/row_kernels.h"
#undef F
#define F bf16
#include "add_norm/row_kernels.h"
#undef X
#define X bf16
#include "add_norm/row_kernels.h"

#define NAME_(level) addnorm_add_norm_##level
#define NAME(level) NAME_(level)

const struct addnorm_add_norm_level NAME(LEVEL) = {
    .forward = {forward_f32_f32, forward_bf16_bf16, forward_f32_bf16},
    .backward = {backward_f32_f32, backward_bf16_bf16, backward_f32_bf16},
    .dropout = {dropout_f32_f32, dropout_bf16_bf16, dropout_f32_bf16},
};
