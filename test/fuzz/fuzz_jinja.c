/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzzer: any text as a chat template, rendered with a chat that has one of everything. The ranges
 * that come back lie within the text. */
#include "data/jinja/jinja.h"

#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char chat[] =
    "{\"messages\":[{\"role\":\"system\",\"content\":\" s "
    "\"},{\"role\":\"user\",\"content\":\"a\\nb\"},"
    "{\"role\":\"assistant\",\"content\":\"c\",\"tool_calls\":[{\"type\":\"function\",\"function\":"
    "{\"name\":\"f\",\"arguments\":{\"x\":1,\"y\":[1.5,null,true]}}}]},{\"role\":\"tool\","
    "\"content\":"
    "[{\"type\":\"text\",\"text\":\"\xC3\xA9\"}]}],\"tools\":[{\"type\":\"function\",\"function\":"
    "{\"name\":\"f\"}}],\"add_generation_prompt\":true,\"bos_token\":\"<s>\",\"eos_token\":\"</"
    "s>\"}";

static void check_ranges(const dsi_jinja_range *ranges, size_t n, size_t size)
{
    for (size_t i = 0; i < n; ++i) {
        if (ranges[i].begin > ranges[i].end || ranges[i].end > size) {
            abort();
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static json_t *variables; /* made once for the run of the fuzzer */
    char error[DSI_JINJA_ERROR];
    dsi_jinja *template = NULL;
    dsi_jinja_result result;
    if (variables == NULL) {
        variables = json_loads(chat, 0, NULL);
    }
    if (variables == NULL) {
        abort();
    }
    if (dsi_jinja_parse((const char *)data, size, &template, error, sizeof error) < 0) {
        return 0;
    }
    if (dsi_jinja_render(template, variables, &result, error, sizeof error) >= 0) {
        check_ranges(result.generated, result.n_generated, result.out.size);
        check_ranges(result.turns, json_array_size(json_object_get(variables, "messages")),
                     result.out.size);
        dsi_jinja_result_free(&result);
    }
    dsi_jinja_destroy(&template);
    return 0;
}
