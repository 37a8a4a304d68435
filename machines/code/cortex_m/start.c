/* What is executed before main on a Cortex-M7: the floating point unit, the sections of data, semihosting. */
#include <stdlib.h>
#include <string.h>

#if __has_include("nn_s8.h")
#include "nn_s8.h"

_Alignas(8) unsigned char nn_dtcm[NN_DTCM_BYTES];

void nn_begin(void) {}
#endif

extern char __data_start, __data_end, __data_load, __bss_start__, __bss_end__, __stack_top;
extern int main(void);
extern void initialise_monitor_handles(void);

void _init(void) {}
void _fini(void) {}

__attribute__((used)) static void run(void) {
  memcpy(&__data_start, &__data_load, (size_t)(&__data_end - &__data_start));
  memset(&__bss_start__, 0, (size_t)(&__bss_end__ - &__bss_start__));
  initialise_monitor_handles();
  exit(main());
}

/* Coprocessors 10 and 11, in CPACR, before any function that may use their registers. */
__attribute__((naked, used)) static void reset(void) {
  __asm__ volatile(
      "ldr r0, =0xE000ED88\n"
      "ldr r1, [r0]\n"
      "orr r1, r1, #0xF00000\n"
      "str r1, [r0]\n"
      "dsb\n"
      "isb\n"
      "b run\n");
}

__attribute__((used)) static void fault(void) { _Exit(1); }

__attribute__((section(".vectors"), used)) static void *const vectors[] = {
    &__stack_top, (void *)reset, (void *)fault, (void *)fault, (void *)fault, (void *)fault, (void *)fault,
};
