/* SPDX-License-Identifier: Apache-2.0 */
/* Profiles by the name that a device's driver has for it. See device.h.
 *
 * Names are compared whole: what a name has more is another device (H200 NVL and H100 NVL have
 * other memory and links, RTX 4090 D and Laptop fewer units, A100-PCIE no switch, a MIG slice a
 * part of all). Those with PCIe alone are in the table where their profile is.
 */
#include "cost/device.h"

#include <string.h>

static const struct {
    const char *name, *profile;
} names[] = {
    {"NVIDIA A100-SXM4-40GB", "a100-40g"},
    {"NVIDIA A100-SXM4-80GB", "a100-80g"},
    {"NVIDIA H100 80GB HBM3", "h100-sxm"},
    {"NVIDIA H100 PCIe", "h100-pcie"},
    {"NVIDIA H200", "h200"},
    {"NVIDIA B200", "b200"},
    {"NVIDIA GeForce RTX 4090", "rtx-4090"},
};

const dsi_device *dsi_device_of_name(const char *driver_name)
{
    for (size_t i = 0; i < sizeof names / sizeof names[0]; ++i) {
        for (uint32_t d = 0; strcmp(names[i].name, driver_name) == 0 && dsi_device_at(d) != NULL;
             ++d) {
            if (strcmp(dsi_device_at(d)->name, names[i].profile) == 0) {
                return dsi_device_at(d);
            }
        }
    }
    return NULL;
}

const char *dsi_device_name_of(const char *profile)
{
    for (size_t i = 0; i < sizeof names / sizeof names[0]; ++i) {
        if (strcmp(names[i].profile, profile) == 0) {
            return names[i].name;
        }
    }
    return NULL;
}
