/* Let Slurm's xcc plugin, which knows only the BMC of its own machine, talk to one by LAN: preload this into slurmd.
 * JOULELAB_BMC is HOST:PORT, JOULELAB_BMC_USER and JOULELAB_BMC_PASSWORD_FILE are how to log in. For tests only. */
#include <freeipmi/freeipmi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int open_by_lan(ipmi_ctx_t ctx)
{
    const char *address = getenv("JOULELAB_BMC");
    const char *user = getenv("JOULELAB_BMC_USER");
    const char *path = getenv("JOULELAB_BMC_PASSWORD_FILE");
    char password[64] = "";
    FILE *file = path ? fopen(path, "r") : NULL;

    if (file == NULL)
        return -1;
    if (fgets(password, sizeof password, file) == NULL)
        password[0] = '\0';
    fclose(file);
    password[strcspn(password, "\r\n")] = '\0';
    if (address == NULL || user == NULL)
        return -1;
    /* Cipher suite 3; timeouts of 0 are the library's own. */
    return ipmi_ctx_open_outofband_2_0(ctx, address, user, password, NULL, 0, IPMI_PRIVILEGE_LEVEL_ADMIN, 3, 0, 0,
                                       0, IPMI_FLAGS_DEFAULT);
}

int ipmi_ctx_find_inband(ipmi_ctx_t ctx, ipmi_driver_type_t *driver, int no_probe, uint16_t address,
                         uint8_t spacing, const char *device, unsigned int workarounds, unsigned int flags)
{
    (void)driver, (void)no_probe, (void)address, (void)spacing, (void)device, (void)workarounds, (void)flags;
    return open_by_lan(ctx) < 0 ? -1 : 1;
}

int ipmi_ctx_open_inband(ipmi_ctx_t ctx, ipmi_driver_type_t driver, int no_probe, uint16_t address, uint8_t spacing,
                         const char *device, unsigned int workarounds, unsigned int flags)
{
    (void)driver, (void)no_probe, (void)address, (void)spacing, (void)device, (void)workarounds, (void)flags;
    return open_by_lan(ctx);
}
