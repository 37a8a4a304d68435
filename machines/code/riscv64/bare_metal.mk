# A program for a 64-bit RISC-V without an operating system, by riscv64-unknown-elf-gcc and picolibc.
#
#   make -f bare_metal.mk PROGRAM=main SOURCES="main.c kernels.c" INCLUDE=DIR [DEFINES=-DNAME]
#
# Writes PROGRAM.elf and prints its size. It ends through HTIF: spike PROGRAM.elf, or
# qemu-system-riscv64 -M spike -bios none -nographic -kernel PROGRAM.elf.

CROSS ?= riscv64-unknown-elf-
PROGRAM ?= main
SOURCES ?= $(PROGRAM).c
INCLUDE ?= .
DEFINES ?=
MEMORY ?= 256M
HERE := $(dir $(lastword $(MAKEFILE_LIST)))
TARGET := -march=rv64gc -mabi=lp64d -mcmodel=medany --specs=picolibc.specs
CFLAGS ?= -O2 -ffp-contract=off -ffunction-sections -fdata-sections
LDFLAGS ?= -Wl,--gc-sections

$(PROGRAM).elf: $(SOURCES) $(HERE)start.S $(HERE)htif.c $(HERE)link.ld
	$(CROSS)gcc $(TARGET) -std=gnu11 $(CFLAGS) $(DEFINES) $(addprefix -I,$(INCLUDE)) -nostartfiles -T $(HERE)link.ld \
	  $(LDFLAGS) -Wl,--defsym=__memory=$(MEMORY) $(SOURCES) $(HERE)start.S $(HERE)htif.c -lm -o $@
	$(CROSS)size $@

clean:
	rm -f $(PROGRAM).elf

.PHONY: clean
