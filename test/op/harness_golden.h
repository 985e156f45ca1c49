/* SPDX-License-Identifier: Apache-2.0 */
/* Lines of test/golden/op/: a tag, words, numbers. */
#ifndef DS_TEST_OP_HARNESS_GOLDEN_H
#define DS_TEST_OP_HARNESS_GOLDEN_H

#include <stdio.h>

enum { GOLDEN_MOST = 256 };

typedef struct op_line {
    char word[3][32]; /* the tag and up to two words after it, "" when absent */
    double x[GOLDEN_MOST];
    int n;
} op_line;

/* False at the end of the file. */
int op_golden_next(FILE *file, op_line *line);

#endif
