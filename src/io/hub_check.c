/* SPDX-License-Identifier: Apache-2.0 */
/* Whether a snapshot has, whole, what is to be read of it.
 *
 * A download that was broken off shows itself in four ways, each an error that names the file: a
 * link without its blob; a file of trees/COMMIT.json that is not there; a shard that the index of
 * the weights names and that is not there; where no such list of files is, a blob ".incomplete"
 * whose whole blob is not there. Files that nothing here reads (onnx/…) may lack;
 * pytorch_model.bin too, which may stand beside safetensors: its reader says when it is missing.
 */
#include "io/file.h"
#include "io/hub.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static const char INCOMPLETE[] = ".incomplete";
static const char INDEX[] = "model.safetensors.index.json";

typedef struct check {
    ds_ctx *ctx;
    const dsi_hub_model *model;
    uint32_t needs;
} check;

static bool ends(const char *text, const char *with)
{
    const size_t n = strlen(text);
    return n >= strlen(with) && strcmp(text + n - strlen(with), with) == 0;
}

static bool begins(const char *text, const char *with)
{
    return strncmp(text, with, strlen(with)) == 0;
}

/* Whether the file, a path below the snapshot, is one that is read. Shards: see check_shards. */
static bool is_read(const char *path, uint32_t needs)
{
    static const char *const tokenizer[] = {
        "vocab.json",        "merges.txt",          "special_tokens_map.json",
        "added_tokens.json", "chat_template.jinja", "chat_template.json"};
    if ((needs & DS_HUB_CONFIG) != 0 && strcmp(path, "config.json") == 0) {
        return true;
    }
    if ((needs & DS_HUB_WEIGHTS) != 0 &&
        (strcmp(path, "model.safetensors") == 0 || strcmp(path, INDEX) == 0 ||
         strcmp(path, "generation_config.json") == 0)) {
        return true;
    }
    if ((needs & DS_HUB_TOKENIZER) == 0) {
        return false;
    }
    for (size_t i = 0; i < sizeof tokenizer / sizeof tokenizer[0]; ++i) {
        if (strcmp(path, tokenizer[i]) == 0) {
            return true;
        }
    }
    return begins(path, "additional_chat_templates/") ||
           (begins(path, "tokenizer") && strchr(path, '/') == NULL);
}

/* A file of the snapshot; dangling links are none, and neither is what .no_exist says. */
static bool is_there(const check *c, const char *name)
{
    struct stat st;
    char *path = dsi_path_join(c->model->snapshot, name);
    char *none = NULL;
    const bool known =
        asprintf(&none, "%s/.no_exist/%s/%s", c->model->repo, c->model->commit, name) >= 0;
    const bool there = path != NULL && known && stat(path, &st) == 0 && S_ISREG(st.st_mode) &&
                       !(stat(none, &st) == 0 && S_ISREG(st.st_mode));
    free(path);
    free(none);
    return there;
}

static ds_status broken(const check *c, const char *folder, const char *name, const char *how)
{
    char *command = dsi_hub_command(c->model);
    const ds_status status = ds_fail(
        c->ctx, DS_ERR_FORMAT, "%s/%s: %s: the download of %s was broken off; finish it: %s",
        folder, name, how, c->model->name, command != NULL ? command : "hf download");
    free(command);
    return status;
}

static ds_status check_links(const check *c)
{
    char **names = NULL;
    size_t n = 0;
    ds_status status = dsi_folder_list(c->ctx, c->model->snapshot, &names, &n);
    for (size_t i = 0; i < n && status >= 0; ++i) {
        struct stat st;
        char *path =
            is_read(names[i], c->needs) ? dsi_path_join(c->model->snapshot, names[i]) : NULL;
        if (path != NULL && stat(path, &st) != 0 && lstat(path, &st) == 0) {
            status = broken(c, c->model->snapshot, names[i], "a link to a file that is not there");
        }
        free(path);
    }
    dsi_names_free(names, n);
    return status;
}

/* The list of all files of the commit; NULL: none that can be read. */
static json_t *load_tree(const dsi_hub_model *m)
{
    char *path = NULL;
    json_t *root = NULL;
    if (asprintf(&path, "%s/trees/%s.json", m->repo, m->commit) >= 0) {
        root = json_load_file(path, 0, NULL);
        free(path);
    }
    const bool known = json_integer_value(json_object_get(root, "format_version")) == 1 &&
                       json_is_object(json_object_get(root, "files"));
    if (!known) {
        json_decref(root);
        return NULL;
    }
    return root;
}

static ds_status check_tree(const check *c, json_t *root)
{
    const char *name;
    json_t *value;
    json_object_foreach(json_object_get(root, "files"), name, value)
    {
        if (is_read(name, c->needs) && !is_there(c, name)) {
            return broken(c, c->model->snapshot, name, "not there");
        }
    }
    return DS_OK;
}

/* Those of the index, where it is what weights are read by. What is wrong with it otherwise is the
 * reader's to say. */
static ds_status check_shards(const check *c)
{
    const char *tensor;
    json_t *value;
    ds_status status = DS_OK;
    char *path = dsi_path_join(c->model->snapshot, INDEX);
    json_t *root = path != NULL && is_there(c, INDEX) && !is_there(c, "model.safetensors")
                       ? json_load_file(path, 0, NULL)
                       : NULL;
    json_object_foreach(json_object_get(root, "weight_map"), tensor, value)
    {
        const char *shard = json_string_value(value);
        if (status >= 0 && shard != NULL && dsi_path_is_plain(shard) && !is_there(c, shard)) {
            status = broken(c, c->model->snapshot, shard, "not there");
        }
    }
    json_decref(root);
    free(path);
    return status;
}

/* "ETAG.incomplete" or "ETAG.1a2b3c4d.incomplete" without the blob "ETAG". */
static ds_status check_blobs(const check *c)
{
    char *folder = dsi_path_join(c->model->repo, "blobs");
    char **names = NULL;
    size_t n = 0;
    struct stat st;
    ds_status status = DS_OK;
    if (folder != NULL && stat(folder, &st) == 0) {
        status = dsi_folder_list(c->ctx, folder, &names, &n);
    }
    for (size_t i = 0; i < n && status >= 0; ++i) {
        char *blob = NULL;
        if (ends(names[i], INCOMPLETE) &&
            asprintf(&blob, "%s/%.*s", folder, (int)strcspn(names[i], "."), names[i]) >= 0 &&
            stat(blob, &st) != 0) {
            status = broken(c, folder, names[i],
                            "a file that is not whole (if it is of no use, "
                            "remove it)");
        }
        free(blob);
    }
    dsi_names_free(names, n);
    free(folder);
    return status;
}

static ds_status lacks(const check *c, const char *what)
{
    char *command = dsi_hub_command(c->model);
    const ds_status status =
        ds_fail(c->ctx, DS_ERR_NOT_FOUND,
                "the Hugging Face cache has no %s of %s (looked in %s); get it with: %s", what,
                c->model->name, c->model->snapshot, command != NULL ? command : "hf download");
    free(command);
    return status;
}

/* One of them at least; the readers know the rest. */
static ds_status check_needs(const check *c)
{
    static const char *const tokenizers[] = {"tokenizer.json",        "vocab.json",
                                             "tokenizer.model",       "spiece.model",
                                             "tokenizer_config.json", NULL};
    static const char *const weights[] = {"model.safetensors", INDEX, "pytorch_model.bin",
                                          "pytorch_model.bin.index.json", NULL};
    static const char *const configs[] = {"config.json", NULL};
    const struct {
        uint32_t need;
        const char *const *names;
        const char *what;
    } rows[] = {{DS_HUB_CONFIG, configs, "config.json"},
                {DS_HUB_TOKENIZER, tokenizers, "tokenizer"},
                {DS_HUB_WEIGHTS, weights, "weights (model.safetensors)"}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; ++i) {
        bool found = (c->needs & rows[i].need) == 0;
        for (const char *const *name = rows[i].names; *name != NULL && !found; ++name) {
            found = is_there(c, *name);
        }
        if (!found) {
            return lacks(c, rows[i].what);
        }
    }
    return DS_OK;
}

ds_status dsi_hub_check(ds_ctx *ctx, const dsi_hub_model *model, uint32_t needs)
{
    const check c = {.ctx = ctx, .model = model, .needs = needs};
    DS_TRY(check_links(&c));
    if ((needs & DS_HUB_WEIGHTS) != 0) {
        DS_TRY(check_shards(&c));
    }
    json_t *tree = load_tree(model);
    ds_status status = DS_OK;
    if (tree != NULL) {
        status = check_tree(&c, tree);
    } else if ((needs & (DS_HUB_WEIGHTS | DS_HUB_TOKENIZER)) != 0) {
        status = check_blobs(&c);
    }
    json_decref(tree);
    return status < 0 ? status : check_needs(&c);
}
