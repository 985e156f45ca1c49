/* SPDX-License-Identifier: Apache-2.0 */
/* One row: JSON to tokens with loss flags, by way of its schema (schema/schema.h). Runs on any
 * thread: errors are texts in the result, not records in the context. */
#include "data/schema/schema.h"
#include "data/source.h"
#include "io/json_load.h"

#include <stdlib.h>

static void refuse_json(const dsi_schema_row *r, const json_error_t *error)
{
    if (error->text[0] == '\0' || json_error_code(error) == json_error_out_of_memory) {
        (void)dsi_schema_no_memory(r);
    } else {
        (void)dsi_schema_refuse(r, DS_ERR_FORMAT, "column %d: %s", error->column, error->text);
    }
}

void dsi_line_tokenize(const ds_dataset_params *params, ds_tokenizer_scratch *scratch,
                       const char *text, size_t n, dsi_line *line_out)
{
    json_error_t error;
    dsi_schema_row r = {.params = params, .line = line_out};
    dsi_form form;
    *line_out = (dsi_line){0};
    while (n > 0 && (text[n - 1] == '\r' || text[n - 1] == ' ' || text[n - 1] == '\t')) {
        --n;
    }
    if (n == 0) {
        return;
    }
    json_t *json = dsi_json_parse(text, n, JSON_ALLOW_NUL, &error);
    if (json == NULL) {
        refuse_json(&r, &error);
        return;
    }
    json_t *row = dsi_columns_apply(&r, json);
    r.columns = json;
    r.row = row;
    if (row == NULL) {
        (void)dsi_schema_no_memory(&r);
    } else if (params->rows == DS_ROWS_SOURCES) {
        (void)dsi_schema_sources(&r, scratch);
    } else if (params->rows == DS_ROWS_CONTRAST) {
        (void)dsi_schema_contrast(&r, scratch);
    } else if (params->rows >= DS_ROWS_CLASSES) {
        (void)dsi_schema_classes(&r, scratch);
    } else {
        (void)(dsi_schema_read(&r, &form) && dsi_form_tokenize(&r, scratch, &form));
        dsi_form_free(&form);
    }
    json_decref(row);
    json_decref(json);
}

void dsi_line_free(dsi_line *line)
{
    free(line->ids);
    free(line->counted);
    line->ids = NULL;
    line->counted = NULL;
}
