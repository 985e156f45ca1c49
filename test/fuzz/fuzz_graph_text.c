/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzzer of graph text: what is accepted prints as a text that is accepted again and prints the
 * same. Build with clang -fsanitize=fuzzer,address,undefined. */
#include <deepspeed/graph.h>
#include <deepspeed/op.h>

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* The text of the graph that `text` is, NULL when it is refused. */
static char *through(const char *text)
{
    ds_cells *cells = NULL;
    ds_graph *graph = NULL;
    char *again = NULL;
    if (ds_cells_create(NULL, 4096, &cells) >= 0 &&
        ds_graph_parse(NULL, text, cells, ds_op_find, &graph) >= 0 &&
        ds_graph_print(graph, &again) < 0) {
        abort();
    }
    ds_graph_destroy(&graph);
    ds_cells_destroy(&cells);
    return again;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = size < ((size_t)1 << 20) ? malloc(size + 1) : NULL;
    if (text == NULL) {
        return 0;
    }
    memcpy(text, data, size);
    text[size] = '\0';
    char *first = through(text);
    char *second = first != NULL ? through(first) : NULL;
    if (first != NULL && (second == NULL || strcmp(first, second) != 0)) {
        abort();
    }
    free(second);
    free(first);
    free(text);
    return 0;
}
