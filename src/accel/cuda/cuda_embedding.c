/* SPDX-License-Identifier: Apache-2.0 */
/* Glue of kernels/embedding.cu, of whole tables and of parts, and dropout.cu. */
#include "accel/cuda/cuda_launch.h"
#include "accel/cuda/kernels/embedding.h"

static bool is_embedding(const ds_kernel_sig *sig)
{
    return dsc_is_act(sig->in[0].dtype) && (sig->n_in < 3 || sig->in[2].dtype == DS_DTYPE_NONE ||
                                            sig->in[2].dtype == sig->in[0].dtype);
}

static dsc_embedding_args rows_args(const ds_kernel_call *call)
{
    const ds_meta *table = &call->in[0].meta;
    return (dsc_embedding_args){.table = dsc_in(call, 0),
                                .ids = dsc_in(call, 1),
                                .y = dsc_out(call, 0),
                                .fault = dsc_fault_of(call),
                                .call = (uint64_t)(uintptr_t)call,
                                .n = ds_shape_count(call->in[1].meta.shape),
                                .columns = table->shape.dims[1],
                                .n_rows = table->shape.dims[0],
                                .all_rows = table->shape.dims[0]};
}

static ds_status launch_rows(const ds_kernel_call *call, const dsc_embedding_args *args)
{
    const dsc_shape shape = dsc_block_an_item(args->n, args->columns);
    return dsc_launch(call, dsc_of_dtype(DSC_FN_embedding_f32, call->in[0].meta.dtype), &shape,
                      args, sizeof *args);
}

static ds_status embedding_run(const ds_kernel_call *call)
{
    dsc_embedding_args args = rows_args(call);
    args.places = dsc_in(call, 2);
    args.positions = dsc_in(call, 3);
    args.n_places = args.places != NULL ? call->in[2].meta.shape.dims[0] : 0;
    return launch_rows(call, &args);
}

/* table, ids, rows → y, rows */
static bool is_part(const ds_kernel_sig *sig)
{
    return dsc_is_act(sig->in[0].dtype);
}

static ds_status embedding_part_run(const ds_kernel_call *call)
{
    dsc_embedding_args args = rows_args(call);
    args.first = dsc_in(call, 2);
    args.all_rows = ((const dsi_vocab_attrs *)call->sig->attrs)->n_rows;
    DS_TRY(dsc_copy_whole(call, 1, &call->in[2]));
    return launch_rows(call, &args);
}

static bool is_embedding_dw(const ds_kernel_sig *sig)
{
    return dsc_is_act(sig->in[1].dtype) && sig->out[0].dtype == DS_DTYPE_F32;
}

/* dtable_in: which input it is; first and all_rows: as the kernel has them. */
static ds_status launch_dw(const ds_kernel_call *call, uint32_t dtable_in, const int32_t *first,
                           int64_t all_rows)
{
    enum { PARTS = 64 };
    const ds_shape table = call->out[0].meta.shape;
    dsc_embedding_args args = {.ids = dsc_in(call, 0),
                               .dy = dsc_in(call, 1),
                               .dtable_in = dsc_in(call, dtable_in),
                               .first = first,
                               .dtable = dsc_out(call, 0),
                               .fault = dsc_fault_of(call),
                               .call = (uint64_t)(uintptr_t)call,
                               .n = ds_shape_count(call->in[0].meta.shape),
                               .columns = table.dims[1],
                               .n_rows = table.dims[0],
                               .all_rows = all_rows};
    args.part = (args.n_rows + PARTS - 1) / PARTS;
    dsc_shape shape = {
        {(uint32_t)((args.columns + DSC_BLOCK - 1) / DSC_BLOCK), PARTS, 1},
        {args.columns < DSC_BLOCK ? (uint32_t)(args.columns + 31) / 32 * 32 : DSC_BLOCK, 1, 1}};
    return dsc_launch(call, dsc_of_dtype(DSC_FN_embedding_dw_f32, call->in[1].meta.dtype), &shape,
                      &args, sizeof args);
}

static ds_status embedding_dw_run(const ds_kernel_call *call)
{
    return launch_dw(call, 2, NULL, call->out[0].meta.shape.dims[0]);
}

/* ids, dy, rows, [dtable_in] → dtable */
static ds_status embedding_part_dw_run(const ds_kernel_call *call)
{
    return launch_dw(call, 3, dsc_in(call, 2), ((const dsi_vocab_attrs *)call->sig->attrs)->n_rows);
}

static bool is_act(const ds_kernel_sig *sig)
{
    return dsc_is_act(sig->in[0].dtype);
}

static ds_status run_random(const ds_kernel_call *call, dsc_fn first, dsc_dropout_args *args)
{
    const ds_shape x = call->in[0].meta.shape;
    args->x = dsc_in(call, 0);
    args->rng = dsc_in(call, 1);
    args->rows = dsc_in(call, 2);
    args->y = dsc_out(call, 0);
    args->n = ds_shape_count(x);
    args->sample = x.dims[0] > 0 ? args->n / x.dims[0] : 0;
    args->row = args->n_rows > 0 && args->sample > 0 ? args->sample / x.dims[1] : 0;
    args->width = ds_shape_last(x);
    const dsc_shape shape = dsc_over_items(args->n);
    return dsc_launch(call, dsc_of_dtype(first, call->in[0].meta.dtype), &shape, args,
                      sizeof *args);
}

static ds_status dropout_run(const ds_kernel_call *call)
{
    const dsi_dropout_attrs *attrs = call->sig->attrs;
    dsc_dropout_args args = {.columns = attrs->n_columns > 0 ? dsc_in(call, 3) : NULL,
                             .n_rows = attrs->n_rows,
                             .n_columns = attrs->n_columns,
                             .site = attrs->site,
                             .p = (float)attrs->p};
    return run_random(call, DSC_FN_dropout_f32, &args);
}

static ds_status noise_run(const ds_kernel_call *call)
{
    const dsi_noise_attrs *attrs = call->sig->attrs;
    dsc_dropout_args args = {.n_rows = attrs->n_rows,
                             .site = attrs->site,
                             .p = (float)attrs->amount,
                             .kind = (int32_t)attrs->kind};
    return run_random(call, DSC_FN_noise_f32, &args);
}

DSC_ROW(embedding, is_embedding, embedding_run);
DSC_ROW(embedding_dw, is_embedding_dw, embedding_dw_run);
DSC_ROW(embedding_part, is_part, embedding_part_run);
DSC_ROW(embedding_part_dw, is_embedding_dw, embedding_part_dw_run);
DSC_ROW(dropout, is_act, dropout_run);
DSC_ROW(noise, is_act, noise_run);
const ds_kernel *const dsc_embedding_kernels[] = {&embedding_kernel,
                                                  &embedding_dw_kernel,
                                                  &embedding_part_kernel,
                                                  &embedding_part_dw_kernel,
                                                  &dropout_kernel,
                                                  &noise_kernel,
                                                  NULL};
