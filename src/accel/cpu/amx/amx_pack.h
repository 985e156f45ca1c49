/* SPDX-License-Identifier: Apache-2.0 */
/* Packing of bf16 operands into the form that the tile loop loads: steps of 32 values of k, 2 KiB
 * each, two tiles a step.
 *
 * A: tile = 16 rows of 32 consecutive k. B: tile row r holds k = 2r and 2r+1 of 16 columns side by
 * side. Beyond the edges of the matrix there are zeros. Steps of B are laid out block by block of
 * `block_steps` steps, within a block panel by panel (32 columns), so that what one sweep over the
 * panels reads is contiguous.
 */
#ifndef DSI_ACCEL_CPU_AMX_PACK_H
#define DSI_ACCEL_CPU_AMX_PACK_H

#include "accel/cpu/amx/amx_tile.h"
#include "accel/cpu/gemm.h"

/* A range of B in the making. The same range and geometry always give the same bytes. */
typedef struct amx_pack_b {
    amx_side side;
    const dsi_gemm_params *p;
    int64_t step0, n_steps;   /* of k */
    int64_t panel0, n_panels; /* of n */
    int64_t block_steps;
    char *out;
    int64_t pair, panel; /* B stored (k,n): the next unit, */
    char *to;            /* where it goes, */
    size_t panel_bytes;  /* and how far from there the next panel is */
} amx_pack_b;

/* Fills everything but side's progress. */
void amx_pack_b_init(amx_pack_b *job, const dsi_gemm_params *p, int64_t step0, int64_t n_steps,
                     int64_t panel0, int64_t n_panels, int64_t block_steps, char *out);
/* Units of the job, to be given to amx_side_start. */
int64_t amx_pack_b_units(const amx_pack_b *job);

/* Where (panel, step) of such a range lies, both counted from the range's start. */
static inline size_t amx_b_offset(int64_t n_panels, int64_t block_steps, int64_t n_steps,
                                  int64_t panel, int64_t step)
{
    const int64_t block = step / block_steps;
    const int64_t first = block * block_steps;
    const int64_t length = first + block_steps <= n_steps ? block_steps : n_steps - first;
    return (size_t)(first * n_panels + panel * length + (step - first)) * AMX_STEP_BYTES;
}

/* One panel of a row-major A in the making: rows [row0, row0+32), steps [step0, step0+n_steps). A
 * unit is a row. With out NULL rows are only fetched into the second-level cache. */
typedef struct amx_pack_a {
    amx_side side;
    const dsi_gemm_params *p;
    int64_t row0;
    int64_t step0, n_steps;
    char *out;
} amx_pack_a;

void amx_pack_a_init(amx_pack_a *job, const dsi_gemm_params *p, int64_t row0, int64_t step0,
                     int64_t n_steps, char *out);

/* Packs one step of panels [panel0, panel1) of an A stored (k,m); panel i goes to
 * out + i·panel_bytes. */
void amx_pack_a_columns(const dsi_gemm_params *p, int64_t step, int64_t panel0, int64_t panel1,
                        size_t panel_bytes, char *out);

#endif
