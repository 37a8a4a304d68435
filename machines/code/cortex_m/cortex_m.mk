# A program for a Cortex-M7 without an operating system, by arm-none-eabi-gcc and newlib.
#
#   make -f cortex_m.mk PROGRAM=main SOURCES="main.c kernels.c" [DEFINES=-DNAME]
#
# Writes PROGRAM.elf and prints its size. It prints and ends by semihosting, as a debugger serves it, or
# qemu-system-arm -M mps2-an500 -nographic -semihosting -kernel PROGRAM.elf.

CROSS ?= arm-none-eabi-
PROGRAM ?= main
SOURCES ?= $(PROGRAM).c
DEFINES ?=
HERE := $(dir $(lastword $(MAKEFILE_LIST)))
TARGET := -mcpu=cortex-m7 -mthumb -mfloat-abi=hard -mfpu=fpv5-d16 --specs=rdimon.specs
CFLAGS ?= -O2 -ffp-contract=off -ffunction-sections -fdata-sections
LDFLAGS ?= -Wl,--gc-sections

$(PROGRAM).elf: $(SOURCES) $(HERE)start.c $(HERE)link.ld
	$(CROSS)gcc $(TARGET) -std=gnu11 $(CFLAGS) $(DEFINES) -I$(HERE) -nostartfiles -T $(HERE)link.ld \
	  $(LDFLAGS) $(SOURCES) $(HERE)start.c -lm -o $@
	$(CROSS)size $@

clean:
	rm -f $(PROGRAM).elf

.PHONY: clean
