/* SPDX-License-Identifier: Apache-2.0 */
/* The commands of a conversation. See chat_command.h. */
#include "common/chat_command.h"

#include "common/hub_flag.h"
#include "common/output.h"

#include <stdlib.h>
#include <string.h>

enum { SAVE_CEILING = 1 << 30 };

static const char help[] =
    "  /system TEXT  the system message from now on; without TEXT: prints it\n"
    "  /system none  no system message\n"
    "  /clear        forgets the conversation, but not the system message\n"
    "  /save FILE    writes the conversation, as a line of JSON that ds_train reads\n"
    "  /help         these lines\n"
    "  /exit         ends, as an empty line, Ctrl-D, and Ctrl-C where there is no answer to end\n"
    "A line that begins with // is a message that begins with /. A \\ at the end of a line: the\n"
    "message goes on in the next one. Ctrl-C ends an answer.\n";

static ds_status system_message(ds_ctx *ctx, chat_talk *talk, const char *text)
{
    const chat_turns *t = &talk->turns;
    if (*text != '\0') {
        return chat_turns_system(ctx, &talk->turns, strcmp(text, "none") == 0 ? NULL : text);
    }
    const bool has = t->n > 0 && strcmp(t->items[0].role, "system") == 0;
    (void)printf("%s\n", has ? t->items[0].content : "(no system message)");
    return DS_OK;
}

/* What this conversation saved it may replace. */
static ds_status save(ds_ctx *ctx, chat_talk *talk, const char *path)
{
    const bool again = talk->saved != NULL && strcmp(talk->saved, path) == 0;
    if (*path == '\0' || strcmp(path, "-") == 0) {
        return ds_fail(ctx, DS_ERR_ARG, "/save needs the name of a file");
    }
    DS_TRY(hub_flag_spare(ctx, talk->found, "save", path));
    DS_TRY(output_free(ctx, path, NULL, again));
    dsi_buf text = dsi_buf_make(SAVE_CEILING);
    chat_turns_print(&talk->turns, &text);
    char *name = strdup(path);
    ds_status status = text.failed || name == NULL
                           ? ds_fail(ctx, DS_ERR_NOMEM, "no memory to save the conversation")
                           : output_put(ctx, path, dsi_buf_text(&text), text.size);
    dsi_buf_free(&text);
    if (status < 0) {
        free(name);
        return status;
    }
    free(talk->saved);
    talk->saved = name;
    return DS_OK;
}

ds_status chat_command(ds_ctx *ctx, chat_talk *talk, const char *line, bool *end_out)
{
    const size_t n = strcspn(line, " ");
    const char *rest = line + n + strspn(line + n, " ");
    const struct {
        const char *name;
        enum { HELP, CLEAR, SYSTEM, SAVE, END } what;
    } commands[] = {{"/help", HELP}, {"/?", HELP},   {"/clear", CLEAR}, {"/system", SYSTEM},
                    {"/save", SAVE}, {"/exit", END}, {"/quit", END},    {"/bye", END}};
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; ++i) {
        if (strlen(commands[i].name) != n || strncmp(commands[i].name, line, n) != 0) {
            continue;
        }
        switch (commands[i].what) {
        case HELP:
            (void)fputs(help, stdout);
            return DS_OK;
        case CLEAR:
            chat_turns_clear(&talk->turns);
            return DS_OK;
        case SYSTEM:
            return system_message(ctx, talk, rest);
        case SAVE:
            return save(ctx, talk, rest);
        case END:
            *end_out = true;
            return DS_OK;
        }
    }
    return ds_fail(ctx, DS_ERR_ARG,
                   "%.*s is no command; /help lists them; a line that begins with // is a message "
                   "that begins with /",
                   (int)n, line);
}
