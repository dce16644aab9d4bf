/* Types and constants shared by every operator of the native library.
 *
 * The library is plain C, without headers of Python or torch. Each operator has a folder with
 *
 *   <operator>.h   the struct that src/addnorm/kernels/ packs, and the exported function
 *   <operator>.c   argument checks, choice of the level, division of the work among threads
 *   kernels.c      the arithmetic, compiled once per instruction-set level
 *   sanitizer_driver.c   a program that runs the kernels under the compiler's sanitizers
 *
 * An exported function takes the struct, a level and a number of threads. The caller has checked
 * shapes and dtypes. No result depends on the number of threads.
 */
#ifndef ADDNORM_H
#define ADDNORM_H

#include <stdint.h>

/* Version of all structs and exported functions. VERSION in src/addnorm/kernels/library.py must be
 * equal: the loader rejects a library that was built from other sources. */
#define ADDNORM_VERSION 6

enum { ADDNORM_PORTABLE, ADDNORM_AVX2, ADDNORM_AVX512, ADDNORM_LEVELS };

/* Dtypes of stream and branch; attention uses the first two. Codes of DTYPE_CODES in library.py. */
enum { ADDNORM_F32, ADDNORM_BF16, ADDNORM_F32_BF16, ADDNORM_DTYPES };

#pragma GCC visibility push(default)
int addnorm_version(void);
/* Bit n is set if level n was compiled and this CPU supports its instructions. */
int addnorm_levels(void);
#pragma GCC visibility pop

#endif
