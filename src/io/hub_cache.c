/* SPDX-License-Identifier: Apache-2.0 */
/* Where the cache of the Hugging Face Hub lies: variables of the environment, of which "~", "~user"
 * and "$NAME" are expanded, as huggingface_hub's constants do. A variable that is set to nothing
 * counts, as there: it names the current folder. */
#include "base/buf.h"
#include "io/hub.h"

#include <ctype.h>
#include <pwd.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PATH_CEILING = 1 << 16 };

static bool is_word(char c)
{
    return isalnum((unsigned char)c) != 0 || c == '_';
}

/* Folder of the user whose name has n bytes; n 0: of this process. NULL: not known. */
static const char *folder_of_user(const char *name, size_t n)
{
    const char *own = n == 0 ? getenv("HOME") : NULL;
    if (own != NULL) {
        return own;
    }
    char *user = strndup(name, n);
    const struct passwd *entry = user == NULL ? NULL : n > 0 ? getpwnam(user) : getpwuid(getuid());
    free(user);
    return entry != NULL ? entry->pw_dir : NULL;
}

/* Appends path with "~" or "~user" at its begin replaced. */
static void expand_user(const char *path, dsi_buf *out)
{
    const size_t n = path[0] == '~' ? strcspn(path, "/") : 0;
    const char *folder = n > 0 ? folder_of_user(path + 1, n - 1) : NULL;
    if (folder == NULL) {
        dsi_buf_puts(out, path);
        return;
    }
    size_t length = strlen(folder);
    while (length > 0 && folder[length - 1] == '/') {
        --length;
    }
    dsi_buf_append(out, folder, length);
    dsi_buf_puts(out, length == 0 && path[n] == '\0' ? "/" : path + n);
}

/* Appends path with "$NAME" and "${NAME}" replaced; of a variable that is not set they stay. */
static void expand_variables(const char *path, dsi_buf *out)
{
    while (*path != '\0') {
        const bool braces = path[0] == '$' && path[1] == '{';
        const char *name = path + (braces ? 2 : 1);
        size_t n = 0;
        while (path[0] == '$' && name[n] != '\0' && (braces ? name[n] != '}' : is_word(name[n]))) {
            ++n;
        }
        const bool whole = path[0] == '$' && (braces ? name[n] == '}' : n > 0);
        char *variable = whole ? strndup(name, n) : NULL;
        const char *value = variable != NULL ? getenv(variable) : NULL;
        free(variable);
        if (value != NULL) {
            dsi_buf_puts(out, value);
            path = name + n + (braces ? 1 : 0);
        } else {
            dsi_buf_putc(out, *path++);
        }
    }
}

static void expand(dsi_buf *path)
{
    dsi_buf home = dsi_buf_make(PATH_CEILING);
    expand_user(dsi_buf_text(path), &home);
    dsi_buf_clear(path);
    expand_variables(dsi_buf_text(&home), path);
    path->failed = path->failed || home.failed;
    dsi_buf_free(&home);
}

/* Appends a name to a folder; an empty folder is the current one. */
static void join(dsi_buf *path, const char *name)
{
    if (path->size > 0 && path->data[path->size - 1] != '/') {
        dsi_buf_putc(path, '/');
    }
    dsi_buf_puts(path, name);
}

static void hf_home(dsi_buf *path)
{
    const char *own = getenv("HF_HOME");
    const char *caches = getenv("XDG_CACHE_HOME");
    if (own != NULL) {
        dsi_buf_puts(path, own);
    } else if (caches != NULL) {
        dsi_buf_puts(path, caches);
        join(path, "huggingface");
    } else {
        dsi_buf_puts(path, "~/.cache/huggingface");
    }
    expand(path);
}

ds_status ds_hub_cache(ds_ctx *ctx, char **folder_out)
{
    const char *newer = getenv("HF_HUB_CACHE");
    const char *older = getenv("HUGGINGFACE_HUB_CACHE");
    dsi_buf path = dsi_buf_make(PATH_CEILING);
    if (newer != NULL || older != NULL) {
        dsi_buf_puts(&path, newer != NULL ? newer : older);
    } else {
        hf_home(&path);
        join(&path, "hub");
    }
    expand(&path);
    char *folder = path.failed ? NULL : strdup(path.size > 0 ? path.data : ".");
    dsi_buf_free(&path);
    if (folder == NULL) {
        return ds_fail(ctx, DS_ERR_NOMEM, "no memory for the folder of the Hugging Face cache");
    }
    *folder_out = folder;
    return DS_OK;
}
