/* SPDX-License-Identifier: Apache-2.0 */
/* ds_train's part of classes, --objective classes and tags: how many there are and what they are
 * called, whether they are numbers or many, and the config.json that says so. See train.h. */
#include "common/train.h"
#include "model/adapter_problem.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_CLASSES = 255 };

/* Names of config.json's id2label, by number; false: it has none that are 0 to n - 1. */
static bool names_of(const json_t *root, train_run *run)
{
    const json_t *labels = json_object_get(root, "id2label");
    const size_t n = json_object_size(labels);
    if (n == 0 || n > MOST_CLASSES) {
        return false;
    }
    run->classes = calloc(n, sizeof *run->classes);
    for (size_t i = 0; i < n && run->classes != NULL; ++i) {
        char key[24];
        (void)snprintf(key, sizeof key, "%zu", i);
        const char *name = json_string_value(json_object_get(labels, key));
        if (name == NULL || (run->classes[i] = strdup(name)) == NULL) {
            return false;
        }
        run->n_classes = (uint32_t)i + 1;
    }
    return run->classes != NULL;
}

static ds_status name_classes(train_run *run)
{
    const train_options *o = run->options;
    const size_t n = o->labels.n > 0 ? o->labels.n : (size_t)o->num_labels;
    if (o->labels.n > 0 && o->num_labels > 0 && (size_t)o->num_labels != o->labels.n) {
        return ds_fail(run->ctx, DS_ERR_ARG, "--labels names %zu classes, --num_labels is %lld",
                       o->labels.n, (long long)o->num_labels);
    }
    if (n < 1 || n > MOST_CLASSES) {
        return ds_fail(run->ctx, DS_ERR_ARG,
                       "how many classes there are, up to %d, is said by --labels NAME…, "
                       "--num_labels N, or id2label in config.json",
                       MOST_CLASSES);
    }
    run->classes = calloc(n, sizeof *run->classes);
    for (size_t i = 0; i < n && run->classes != NULL; ++i) {
        char name[24];
        (void)snprintf(name, sizeof name, "LABEL_%zu", i);
        run->classes[i] = strdup(o->labels.n > 0 ? o->labels.items[i] : name);
        run->n_classes += run->classes[i] != NULL;
    }
    return run->n_classes == n ? DS_OK : ds_fail(run->ctx, DS_ERR_NOMEM, "no memory for classes");
}

/* "BertForMaskedLM" becomes "BertForSequenceClassification". */
static json_t *architecture_of(const char *name, uint32_t task)
{
    const char *head = strstr(name, "For");
    const int n = head != NULL ? (int)(head - name) : (int)strcspn(name, "M");
    return json_sprintf("%.*sFor%sClassification", n, name,
                        task == DS_TASK_TOKEN_CLASSES ? "Token" : "Sequence");
}

/* transformers' names of a ds_problem. */
static const char *const problems[DS_PROBLEMS] = {
    [DS_PROBLEM_CLASSES] = "single_label_classification",
    [DS_PROBLEM_REGRESSION] = "regression",
    [DS_PROBLEM_MULTI_LABEL] = "multi_label_classification"};

static bool has_names(const train_run *run, const json_t *labels)
{
    bool same = json_object_size(labels) == run->n_classes;
    for (uint32_t i = 0; i < run->n_classes && same; ++i) {
        char key[24];
        (void)snprintf(key, sizeof key, "%u", i);
        const char *name = json_string_value(json_object_get(labels, key));
        same = name != NULL && strcmp(name, run->classes[i]) == 0;
    }
    return same;
}

/* What the adapter that is trained further has learnt, over what the model says; flags may repeat
 * it. own: empty. */
static ds_status read_adapter(const train_run *run, json_t *root, json_t *own)
{
    const train_options *o = run->options;
    if (train_task(o) != DS_TASK_SEQUENCE_CLASSES || o->adapter.folder == NULL) {
        return DS_OK;
    }
    DS_TRY(dsi_adapter_problem_read(run->ctx, o->adapter.folder, own));
    (void)json_object_update(root, own);
    const char *was = json_string_value(json_object_get(own, "problem_type"));
    return was == NULL || strcmp(o->problem_type, "auto") == 0 || strcmp(o->problem_type, was) == 0
               ? DS_OK
               : ds_fail(run->ctx, DS_ERR_ARG,
                         "--problem_type %s, and the adapter in %s learnt %s (its config.json)",
                         o->problem_type, o->adapter.folder, was);
}

static ds_status check_names(const train_run *run, const json_t *own)
{
    const json_t *labels = json_object_get(own, "id2label");
    return labels == NULL || has_names(run, labels)
               ? DS_OK
               : ds_fail(run->ctx, DS_ERR_ARG,
                         "--labels or --num_labels: the adapter in %s learnt other classes, or in "
                         "another order (id2label of its config.json)",
                         run->options->adapter.folder);
}

/* As transformers decides it, but that numbers are asked for by name where there are several. */
static ds_status find_problem(train_run *run, json_t *root)
{
    const char *given = run->options->problem_type;
    const char *said = json_string_value(json_object_get(root, "problem_type"));
    const bool by_flag = strcmp(given, "auto") != 0;
    const bool whole = train_task(run->options) == DS_TASK_SEQUENCE_CLASSES;
    const char *name = by_flag ? given : said;
    const bool one = whole && run->n_classes == 1;
    uint32_t problem = one ? DS_PROBLEM_REGRESSION : DS_PROBLEM_CLASSES;
    if (whole && name != NULL) {
        for (problem = 0; problem < DS_PROBLEMS && strcmp(problems[problem], name) != 0;
             ++problem) {
        }
    }
    if (problem == DS_PROBLEMS) {
        return ds_fail(run->ctx, DS_ERR_UNSUPPORTED,
                       "config.json: \"problem_type\" is \"%s\"; known: %s, %s, %s", name,
                       problems[0], problems[1], problems[2]);
    }
    if (problem == DS_PROBLEM_CLASSES && run->n_classes < 2) {
        return ds_fail(
            run->ctx, DS_ERR_ARG,
            "classes are 2 or more, and %u is there (--labels, --num_labels, or id2label "
            "in config.json)",
            run->n_classes);
    }
    run->task_params.problem = problem;
    if (by_flag || problem != DS_PROBLEM_CLASSES) {
        (void)json_object_set_new(root, "problem_type", json_string(problems[problem]));
    }
    return DS_OK;
}

static ds_status say_classes(train_run *run, json_t *root)
{
    const char *name = json_string_value(json_array_get(json_object_get(root, "architectures"), 0));
    json_t *by_id = json_object();
    json_t *by_name = json_object();
    for (uint32_t i = 0; i < run->n_classes; ++i) {
        char key[24];
        (void)snprintf(key, sizeof key, "%u", i);
        (void)json_object_set_new(by_id, key, json_string(run->classes[i]));
        (void)json_object_set_new(by_name, run->classes[i], json_integer(i));
    }
    const bool twice = json_object_size(by_name) != run->n_classes;
    if (name != NULL) {
        (void)json_array_set_new(json_object_get(root, "architectures"), 0,
                                 architecture_of(name, train_task(run->options)));
    }
    (void)json_object_del(root, "num_labels");
    (void)json_object_set_new(root, "id2label", by_id);
    (void)json_object_set_new(root, "label2id", by_name);
    return twice ? ds_fail(run->ctx, DS_ERR_ARG, "--labels: a name is there twice") : DS_OK;
}

ds_status train_classes_open(train_run *run)
{
    json_error_t error;
    json_t *root = json_loads(ds_model_config_text(run->model), 0, &error);
    if (root == NULL) {
        return ds_fail(run->ctx, DS_ERR_UNSUPPORTED,
                       "config.json: whole numbers beyond 64 bits beside classes: %s", error.text);
    }
    json_t *own = json_object(); /* of the adapter */
    const bool given = run->options->labels.n > 0 || run->options->num_labels > 0;
    ds_status status = read_adapter(run, root, own);
    if (status >= 0 && (given || !names_of(root, run))) {
        status = name_classes(run);
    }
    status = status < 0 ? status : check_names(run, own);
    status = status < 0 ? status : find_problem(run, root);
    json_decref(own);
    status = status < 0 ? status : say_classes(run, root);
    char *text = status < 0 ? NULL : json_dumps(root, JSON_INDENT(2) | JSON_REAL_PRECISION(17));
    json_decref(root);
    if (status >= 0 && text == NULL) {
        status = ds_fail(run->ctx, DS_ERR_NOMEM, "no memory for config.json");
    }
    if (status >= 0) {
        ds_model_destroy(&run->model);
        status = ds_model_from_text(run->ctx, text, &run->model);
    }
    free(text);
    return status;
}

void train_classes_free(train_run *run)
{
    for (uint32_t i = 0; i < run->n_classes; ++i) {
        free(run->classes[i]);
    }
    free(run->classes);
}
