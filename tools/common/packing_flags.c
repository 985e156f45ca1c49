/* SPDX-License-Identifier: Apache-2.0 */
/* See packing_flags.h. */
#include "common/packing_flags.h"

ds_status packing_flags_check(ds_ctx *ctx, const packing_flags *f, bool has_adapter)
{
    const int n = f->four + f->eight + f->fp8;
    if (n > 1) {
        return ds_fail(ctx, DS_ERR_ARG,
                       "--load_in_4bit, --load_in_8bit and --load_in_fp8 exclude each other");
    }
    if (!f->four && (f->twice || f->type_given)) {
        return ds_fail(ctx, DS_ERR_ARG, "--%s goes with --load_in_4bit",
                       f->twice ? "bnb_4bit_use_double_quant" : "bnb_4bit_quant_type");
    }
    if (n > 0 && !has_adapter) {
        return ds_fail(ctx, DS_ERR_ARG,
                       "--load_in_%s holds a frozen model, beside an adapter: give --lora RANK or "
                       "--adapter DIR",
                       f->four    ? "4bit"
                       : f->eight ? "8bit"
                                  : "fp8");
    }
    return DS_OK;
}

ds_status packing_flags_set(const packing_flags *f, ds_adapter *adapter)
{
    const ds_packing four = f->twice ? DS_PACKING_NF4_DOUBLE : DS_PACKING_NF4;
    const ds_packing format = f->four    ? four
                              : f->eight ? DS_PACKING_INT8
                              : f->fp8   ? DS_PACKING_FP8
                                         : DS_PACKING_NONE;
    return adapter != NULL ? ds_adapter_pack_base(adapter, format) : DS_OK;
}
