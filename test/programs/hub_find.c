/* SPDX-License-Identifier: Apache-2.0 */
/* Prints the folder of the Hugging Face cache, then for each line "NAME<tab>REVISION<tab>NEEDS" of
 * standard input "OK<tab>FOLDER" or "STATUS<tab>MESSAGE". An empty revision is none.
 * test/io/test_hub.sh compares it with another implementation. */
#include <deepspeed/context.h>
#include <deepspeed/hub.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void find(ds_ctx *ctx, char *line)
{
    char *revision = strchr(line, '\t');
    char *needs = revision != NULL ? strchr(revision + 1, '\t') : NULL;
    char *folder = NULL;
    if (needs == NULL) {
        (void)puts("bad line");
        return;
    }
    *revision++ = '\0';
    *needs++ = '\0';
    const ds_status status = ds_hub_find(ctx, line, *revision != '\0' ? revision : NULL,
                                         (uint32_t)strtoul(needs, NULL, 10), &folder);
    if (status >= 0) {
        (void)printf("OK\t%s\n", folder);
        free(folder);
    } else {
        (void)printf("%s\t%s\n", ds_status_name(status), ds_ctx_error(ctx));
    }
}

int main(void)
{
    enum { LINE_BYTES = 4096 };
    char line[LINE_BYTES];
    ds_ctx *ctx = NULL;
    char *cache = NULL;
    ds_ctx_params params = ds_ctx_params_default();
    params.n_threads = 1;
    if (ds_ctx_create(&params, &ctx) < 0 || ds_hub_cache(ctx, &cache) < 0) {
        return 1;
    }
    (void)puts(cache);
    free(cache);
    while (fgets(line, sizeof line, stdin) != NULL) {
        line[strcspn(line, "\n")] = '\0';
        find(ctx, line);
    }
    ds_ctx_destroy(&ctx);
    return 0;
}
