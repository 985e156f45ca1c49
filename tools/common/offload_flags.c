/* SPDX-License-Identifier: Apache-2.0 */
/* See offload_flags.h. */
#include "common/offload_flags.h"

#include "base/buf.h"
#include "config/config_values.h"

#include <deepspeed/context.h>
#include <inttypes.h>
#include <string.h>

static ds_status load_flags(ds_ctx *ctx, const offload_flags *f, const char *folder,
                            ds_config **config_out)
{
    enum { CEILING = 1 << 20 };
    dsi_buf text = dsi_buf_make(CEILING);
    dsi_buf_printf(&text,
                   "{\"train_micro_batch_size_per_gpu\": 1, \"zero_optimization\": {\"stage\": 3, "
                   "\"stage3_prefetch_bucket_size\": 20000000, \"offload_param\": {\"device\": "
                   "\"%s\", \"max_in_cpu\": %" PRId64,
                   f->device, f->max_in_cpu);
    if (folder != NULL) {
        dsi_buf_puts(&text, ", \"nvme_path\": \"");
        dsi_buf_json(&text, folder, strlen(folder));
        dsi_buf_putc(&text, '"');
    }
    dsi_buf_puts(&text, "}}}");
    const ds_status status = text.failed
                                 ? ds_fail(ctx, DS_ERR_NOMEM, "no memory for flags")
                                 : ds_config_load_text(ctx, "--offload_param", dsi_buf_text(&text),
                                                       text.size, NULL, config_out);
    dsi_buf_free(&text);
    return status;
}

ds_status offload_flags_open(ds_ctx *ctx, offload_flags *f, const char *model, uint32_t ranks)
{
    if (f->config_path != NULL && (f->device != NULL || f->nvme_path != NULL || f->most_given)) {
        return ds_fail(ctx, DS_ERR_ARG,
                       "--deepspeed_config says where weights are; leave --offload_param, "
                       "--nvme_path and --max_in_cpu");
    }
    if (f->device != NULL && strcmp(f->device, "nvme") != 0 &&
        (f->nvme_path != NULL || f->most_given)) {
        return ds_fail(ctx, DS_ERR_ARG, "--%s goes with --offload_param nvme, found %s",
                       f->nvme_path != NULL ? "nvme_path" : "max_in_cpu", f->device);
    }
    if (f->config_path == NULL && f->device == NULL) {
        return f->nvme_path == NULL && !f->most_given && !f->kv
                   ? DS_OK
                   : ds_fail(ctx, DS_ERR_ARG,
                             "--nvme_path, --max_in_cpu and --offload_kv go with --offload_param");
    }
    const ds_config_params any = {.kind = DS_CONFIG_ANY};
    DS_TRY(f->config_path != NULL
               ? ds_config_load_file(ctx, f->config_path, &any, &f->config)
               : load_flags(ctx, f, f->nvme_path != NULL ? f->nvme_path : model, &f->config));
    DS_TRY(ds_config_resolve(f->config, ranks, NULL));
    for (size_t i = 0; offload_flags_infer(f) && i < ds_config_n_notices(f->config); ++i) {
        ds_log(ctx, DS_LOG_JOB, "%s", ds_config_notice(f->config, i));
    }
    return DS_OK;
}

bool offload_flags_infer(const offload_flags *f)
{
    return f->config != NULL && ds_config_get_kind(f->config) != DS_CONFIG_TRAINING;
}

bool offload_says_dtype(const ds_config *config)
{
    return ds_config_get_kind(config) != DS_CONFIG_TRAINING &&
           dsi_config_inference(config)->dtype != DS_DTYPE_NONE;
}

void offload_flags_close(offload_flags *f)
{
    ds_config_destroy(&f->config);
}
