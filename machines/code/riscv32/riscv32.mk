# A program for a 32-bit RISC-V without an operating system, by riscv64-unknown-elf-gcc and picolibc.
#
#   make -f riscv32.mk PROGRAM=main SOURCES="main.c kernels.c" [DEFINES=-DNAME] [OPTIONS=-DNAME] [run]
#
# Writes PROGRAM.elf, prints its size and what PROGRAM_run takes of the stack: its own frame and the largest of the
# functions that it calls, besides those of the C library. It prints and ends by semihosting, as a debugger serves it, or
# QEMU, which `run` calls. With OPTIONS=-DPENSTOCK_MEASURE it prints what a run takes, too, and with -DPENSTOCK_EXACT
# floats are compared bit for bit.

CROSS ?= riscv64-unknown-elf-
BOARD ?= sifive_e
QEMU ?= qemu-system-riscv32
PROGRAM ?= main
SOURCES ?= $(PROGRAM).c
DEFINES ?=
OPTIONS ?=
HERE := $(dir $(lastword $(MAKEFILE_LIST)))
TARGET := -march=rv32imac -mabi=ilp32 -mcmodel=medany -msmall-data-limit=0 --specs=picolibc.specs
CFLAGS ?= -O2 -ffp-contract=off -ffunction-sections -fdata-sections
LDFLAGS ?= -Wl,--gc-sections
OBJECTS := $(addsuffix .o,$(basename $(SOURCES) $(HERE)start.c))

$(PROGRAM).elf: $(OBJECTS) $(HERE)link.ld
	$(CROSS)gcc $(TARGET) -nostartfiles -T $(HERE)link.ld --oslib=semihost $(LDFLAGS) $(OBJECTS) -lm -o $@
	$(CROSS)size $@
	@awk -F '\t' '$$3 != "static" { free = 1 } $$1 ~ /:$(PROGRAM)_run$$/ { run = $$2; next } $$2 > most { most = $$2 } \
	  END { print "stack: " (free ? "no bound" : "at most " run + most " bytes in $(PROGRAM)_run") }' $(PROGRAM).su

%.o: %.c
	$(CROSS)gcc $(TARGET) -std=gnu11 $(CFLAGS) -fstack-usage $(DEFINES) $(OPTIONS) -I$(HERE) -c $< -o $@

%.o: %.S
	$(CROSS)gcc $(TARGET) $(DEFINES) $(OPTIONS) -c $< -o $@

run: $(PROGRAM).elf
	@$(QEMU) -M $(BOARD) -display none -serial none -monitor none -chardev stdio,id=console \
	  -semihosting-config enable=on,chardev=console $(QEMU_FLAGS) -kernel $<

clean:
	rm -f $(PROGRAM).elf $(OBJECTS) $(OBJECTS:.o=.su)

.PHONY: clean run
