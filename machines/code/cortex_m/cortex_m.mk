# A program for a Cortex-M without an operating system, by arm-none-eabi-gcc and newlib.
#
#   make -f cortex_m.mk PROGRAM=main SOURCES="main.c kernels.c" [CPU=cortex-m7] [DEFINES=-DNAME] [OPTIONS=-DNAME] [run]
#
# Writes PROGRAM.elf, prints its size and what PROGRAM_run takes of the stack: its own frame and the largest of the
# functions that it calls, besides those of the C library. It prints and ends by semihosting, as a debugger serves it, or
# QEMU, which `run` calls. With OPTIONS=-DPENSTOCK_MEASURE it prints what a run takes, too, and with -DPENSTOCK_EXACT
# floats are compared bit for bit.

CROSS ?= arm-none-eabi-
CPU ?= cortex-m7
BOARD ?= mps2-an500
QEMU ?= qemu-system-arm
PROGRAM ?= main
SOURCES ?= $(PROGRAM).c
DEFINES ?=
OPTIONS ?=
HERE := $(dir $(lastword $(MAKEFILE_LIST)))
FPU_cortex-m7 := fpv5-d16
TARGET := -mcpu=$(CPU) -mthumb -mfloat-abi=hard -mfpu=$(or $(FPU_$(CPU)),auto) --specs=rdimon.specs
CFLAGS ?= -O2 -ffp-contract=off -ffunction-sections -fdata-sections
LDFLAGS ?= -Wl,--gc-sections
OBJECTS := $(addsuffix .o,$(basename $(SOURCES) $(HERE)start.c))

$(PROGRAM).elf: $(OBJECTS) $(HERE)link.ld
	$(CROSS)gcc $(TARGET) -nostartfiles -T $(HERE)link.ld $(LDFLAGS) $(OBJECTS) -lm -o $@
	$(CROSS)size $@
	@awk -F '\t' '$$3 != "static" { free = 1 } $$1 ~ /:$(PROGRAM)_run$$/ { run = $$2; next } $$2 > most { most = $$2 } \
	  END { print "stack: " (free ? "no bound" : "at most " run + most " bytes in $(PROGRAM)_run") }' $(PROGRAM).su

%.o: %.c
	$(CROSS)gcc $(TARGET) -std=gnu11 $(CFLAGS) -fstack-usage $(DEFINES) $(OPTIONS) -I$(HERE) -c $< -o $@

%.o: %.S
	$(CROSS)gcc $(TARGET) $(DEFINES) $(OPTIONS) -c $< -o $@

run: $(PROGRAM).elf
	@$(QEMU) -M $(BOARD) -nographic -semihosting $(QEMU_FLAGS) -kernel $<

clean:
	rm -f $(PROGRAM).elf $(OBJECTS) $(OBJECTS:.o=.su)

.PHONY: clean run
