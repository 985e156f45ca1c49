/* SPDX-License-Identifier: Apache-2.0 */
/* Asks a server for a greedy text by MII's client. Usage: mii_ask ADDRESS NAME KEY TRUST SECONDS
 * PROMPT. KEY "": none; TRUST: a file of certificates, "insecure", or "": the machine's. */
#include <deepspeed/deepspeed.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(int argc, char **argv)
{
    ds_ctx *ctx = NULL;
    ds_client *client = NULL;
    const ds_text_response *responses = NULL;
    const ds_text_options options = {.greedy = true, .max_new_tokens = 12};
    if (argc < 7 || ds_ctx_create(NULL, &ctx) < 0) {
        return 2;
    }
    const bool insecure = strcmp(argv[4], "insecure") == 0;
    const ds_client_params params = {.address = argv[1],
                                     .name = argv[2],
                                     .api_key = argv[3][0] != '\0' ? argv[3] : NULL,
                                     .ca_file = argv[4][0] != '\0' && !insecure ? argv[4] : NULL,
                                     .insecure = insecure,
                                     .timeout_seconds = strtod(argv[5], NULL)};
    const char *const prompts[] = {argv[6]};
    ds_status status = ds_client_create(ctx, &params, &client);
    status = status < 0 ? status : ds_client_generate(client, prompts, 1, &options, &responses);
    if (status < 0) {
        (void)fprintf(stderr, "%s\n", ds_ctx_error(ctx));
    } else {
        (void)printf("%s\n", responses[0].text);
    }
    ds_client_close(&client);
    ds_ctx_destroy(&ctx);
    return status < 0 ? 1 : 0;
}
