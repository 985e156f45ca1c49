/* SPDX-License-Identifier: Apache-2.0 */
/* A model's name to the folder of its snapshot: name → revision → commit → snapshot, each step with
 * an error of its own. The order is that of huggingface_hub's try_to_load_from_cache. */
#include "base/buf.h"
#include "io/file.h"
#include "io/hub.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { MOST_NAME = 96, COMMIT_CEILING = 256, MOST_NAMED = 8 };

static bool is_folder(const char *path)
{
    struct stat st;
    return path != NULL && stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

static bool exists(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0;
}

static bool is_file(const char *path)
{
    struct stat st;
    return path != NULL && stat(path, &st) == 0 && S_ISREG(st.st_mode);
}

static bool is_word(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

/* One part: begins and ends with a letter, a digit or "_". */
static bool is_hub_part(const char *part, size_t n)
{
    for (size_t i = 0; i < n; ++i) {
        if (!is_word(part[i]) && part[i] != '-' && part[i] != '.') {
            return false;
        }
    }
    return n > 0 && n <= MOST_NAME && is_word(part[0]) && is_word(part[n - 1]);
}

/* "name" or "org/name" as the Hub allows it (validate_repo_id of huggingface_hub). */
static bool is_hub_name(const char *name)
{
    const size_t n = strcspn(name, "/");
    const char *rest = name[n] == '/' ? name + n + 1 : NULL;
    return strstr(name, "--") == NULL && strstr(name, "..") == NULL &&
           !(strlen(name) >= 4 && strcmp(name + strlen(name) - 4, ".git") == 0) &&
           is_hub_part(name, n) && (rest == NULL || is_hub_part(rest, strlen(rest)));
}

/* A path below refs/: no way out of it. */
static bool is_revision(const char *text)
{
    if (text[0] == '\0' || text[0] == '/' || strlen(text) > COMMIT_CEILING) {
        return false;
    }
    for (const char *part = text; part != NULL;) {
        const size_t n = strcspn(part, "/");
        if ((n == 1 && part[0] == '.') || (n == 2 && strncmp(part, "..", 2) == 0)) {
            return false;
        }
        part = part[n] == '/' ? part + n + 1 : NULL;
    }
    return true;
}

static char *repo_folder(const char *cache, const char *name)
{
    char *folder = NULL;
    const size_t org = strcspn(name, "/");
    const bool has_org = name[org] == '/';
    const int n = asprintf(&folder, "%s/models--%.*s%s%s", cache, (int)org, name,
                           has_org ? "--" : "", has_org ? name + org + 1 : "");
    return n >= 0 ? folder : NULL;
}

char *dsi_hub_command(const dsi_hub_model *model)
{
    char *command = NULL;
    const bool given = model->revision != NULL;
    return asprintf(&command, "hf download %s%s%s", model->name, given ? " --revision " : "",
                    given ? model->revision : "") >= 0
               ? command
               : NULL;
}

/* The commit that a branch or tag names; the revision itself where there is no such ref. */
static ds_status read_ref(ds_ctx *ctx, dsi_hub_model *m)
{
    const char *revision = m->revision != NULL ? m->revision : "main";
    char *path = NULL;
    ds_status status = DS_OK;
    dsi_buf text = dsi_buf_make(COMMIT_CEILING);
    if (asprintf(&path, "%s/refs/%s", m->repo, revision) < 0) {
        return ds_fail(ctx, DS_ERR_NOMEM, "no memory to find %s", m->name);
    }
    if (is_file(path)) {
        status = dsi_buf_read_file(ctx, path, &text);
        m->commit = status >= 0 ? strdup(dsi_buf_text(&text)) : NULL;
    } else {
        m->commit = strdup(revision);
    }
    if (status >= 0 && m->commit == NULL) {
        status = ds_fail(ctx, DS_ERR_NOMEM, "no memory to find %s", m->name);
    }
    dsi_buf_free(&text);
    free(path);
    return status;
}

/* The first names in a folder of the model, for a message. */
static void list_names(const dsi_hub_model *m, const char *folder, const char *what, dsi_buf *text)
{
    char *path = dsi_path_join(m->repo, folder);
    char **names = NULL;
    size_t n = 0;
    if (is_folder(path) && dsi_folder_list(NULL, path, &names, &n) >= 0 && n > 0) {
        dsi_buf_printf(text, "; %s:", what);
        for (size_t i = 0; i < n && i < MOST_NAMED; ++i) {
            dsi_buf_printf(text, " %s", names[i]);
        }
        dsi_buf_puts(text, n > MOST_NAMED ? " …" : "");
    }
    dsi_names_free(names, n);
    free(path);
}

/* The model is in the cache, this revision is not. */
static ds_status no_revision(ds_ctx *ctx, const dsi_hub_model *m)
{
    enum { CEILING = 1 << 14 };
    dsi_buf text = dsi_buf_make(CEILING);
    char *command = dsi_hub_command(m);
    list_names(m, "refs", "branches and tags there", &text);
    list_names(m, "snapshots", "commits there", &text);
    const ds_status status =
        ds_fail(ctx, DS_ERR_NOT_FOUND,
                "the Hugging Face cache has no revision %s of %s (looked in %s%s); get it with: %s",
                m->revision != NULL ? m->revision : "main", m->name, m->repo, dsi_buf_text(&text),
                command != NULL ? command : "hf download");
    dsi_buf_free(&text);
    free(command);
    return status;
}

static ds_status no_model(ds_ctx *ctx, const dsi_hub_model *m)
{
    char *command = dsi_hub_command(m);
    const ds_status status =
        ds_fail(ctx, DS_ERR_NOT_FOUND,
                "%s is no folder here, and the Hugging Face cache has no model of this name "
                "(looked in %s); get it with: %s",
                m->name, m->repo, command != NULL ? command : "hf download");
    free(command);
    return status;
}

static ds_status find_snapshot(ds_ctx *ctx, dsi_hub_model *m)
{
    if (!is_folder(m->repo)) {
        return no_model(ctx, m);
    }
    DS_TRY(read_ref(ctx, m));
    if (!dsi_path_is_plain(m->commit)) {
        return no_revision(ctx, m);
    }
    if (asprintf(&m->snapshot, "%s/snapshots/%s", m->repo, m->commit) < 0) {
        m->snapshot = NULL;
        return ds_fail(ctx, DS_ERR_NOMEM, "no memory to find %s", m->name);
    }
    return is_folder(m->snapshot) ? DS_OK : no_revision(ctx, m);
}

static ds_status find_in_cache(ds_ctx *ctx, dsi_hub_model *m, uint32_t needs, char **folder_out)
{
    char *cache = NULL;
    DS_TRY(ds_hub_cache(ctx, &cache));
    m->repo = repo_folder(cache, m->name);
    ds_status status =
        m->repo != NULL ? DS_OK : ds_fail(ctx, DS_ERR_NOMEM, "no memory to find %s", m->name);
    DS_TRY_GOTO(status, find_snapshot(ctx, m), done);
    DS_TRY_GOTO(status, dsi_hub_check(ctx, m, needs), done);
    *folder_out = m->snapshot;
    m->snapshot = NULL;
done:
    free(cache);
    free(m->repo);
    free(m->commit);
    free(m->snapshot);
    return status;
}

ds_status ds_hub_find(ds_ctx *ctx, const char *name, const char *revision, uint32_t needs,
                      char **folder_out)
{
    dsi_hub_model model = {.name = name, .revision = revision};
    const bool own = is_folder(name) || (needs == DS_HUB_TOKENIZER && exists(name));
    if (!own && is_hub_name(name)) {
        if (revision != NULL && !is_revision(revision)) {
            return ds_fail(ctx, DS_ERR_ARG,
                           "\"%s\" is no revision of %s: expected a branch, a tag or a commit",
                           revision, name);
        }
        return find_in_cache(ctx, &model, needs, folder_out);
    }
    if (revision != NULL) {
        return ds_fail(ctx, DS_ERR_ARG,
                       "the revision %s is of a model by its name in the Hugging Face cache; %s is "
                       "%s",
                       revision, name, own ? "a path of this machine" : "no such name");
    }
    char *folder = strdup(name);
    if (folder == NULL) {
        return ds_fail(ctx, DS_ERR_NOMEM, "no memory for a path");
    }
    *folder_out = folder;
    return DS_OK;
}
