/* SPDX-License-Identifier: Apache-2.0 */
#include "common/standin_load.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool standin_load(const char *build, standin_calls *calls_out)
{
    static const char *const names[] = {"standin_set", "standin_waits", "standin_ignored_one"};
    char path[4096];
    void *symbols[3] = {NULL};
    (void)snprintf(path, sizeof path, "%s/standin/libcuda.so.1", build);
    /* Whoever asks for libcuda.so.1 gets what is loaded by that name. */
    void *object = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
    for (int i = 0; i < 3 && object != NULL; ++i) {
        symbols[i] = dlsym(object, names[i]);
    }
    static const char *const libraries[] = {"libcublasLt.so.13", "libnccl.so.2",
                                            "libnvidia-ml.so.1", "libcufile.so.0",
                                            "libnvrtc.so.13"};
    for (size_t i = 0; i < sizeof libraries / sizeof libraries[0] && object != NULL; ++i) {
        (void)snprintf(path, sizeof path, "%s/standin/%s", build, libraries[i]);
        object = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
        symbols[2] = object != NULL ? symbols[2] : NULL;
    }
    (void)snprintf(path, sizeof path, "%s/standin", build);
    if (symbols[2] == NULL || setenv("DS_MODULE_PATH", path, 1) != 0) {
        (void)fprintf(stderr, "no stand-in of libcuda and its libraries: %s\n", dlerror());
        return false;
    }
    memcpy(&calls_out->set, &symbols[0], sizeof calls_out->set);
    memcpy(&calls_out->waits, &symbols[1], sizeof calls_out->waits);
    memcpy(&calls_out->ignored_one, &symbols[2], sizeof calls_out->ignored_one);
    return true;
}
