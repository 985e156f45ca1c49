/* Plain text: a file is one document. */
#include "base/buf.h"
#include "data/dataset.h"

#include <stdlib.h>

enum { MAX_MIB = 3 << 10 };

ds_status dsi_dataset_read_text(ds_dataset *dataset, const ds_dataset_params *params,
                                const char *path)
{
    dsi_buf text = dsi_buf_make((size_t)MAX_MIB << 20);
    ds_tokenizer_scratch *scratch = NULL;
    ds_tokens tokens = {0};
    ds_status status = DS_OK;
    DS_TRY_GOTO(status, dsi_buf_read_file(dataset->ctx, path, &text), done);
    DS_TRY_GOTO(status, ds_tokenizer_scratch_create(params->tokenizer, 0, &scratch), done);
    DS_TRY_GOTO(status,
                ds_tokenizer_encode(params->tokenizer, scratch, dsi_buf_text(&text), text.size,
                                    DS_ENCODE_NO_SPECIAL_PARSE, &tokens),
                done);
    status = dsi_dataset_append(dataset, tokens.ids, NULL, tokens.n);
done:
    ds_tokenizer_scratch_destroy(&scratch);
    dsi_buf_free(&text);
    return status;
}
