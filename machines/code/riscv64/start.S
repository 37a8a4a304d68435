/*
 * Start code of a 64-bit RISC-V without an operating system: hart 0 enters main with a stack, zeroed memory and the
 * units for floats, vectors and extensions (custom instructions) switched on; other harts sleep.
 */
    .section .init, "ax", @progbits
    .globl _start
_start:
    .option push
    .option norelax
    la gp, __global_pointer$
    .option pop
    csrr t0, mhartid
    bnez t0, 3f
    li t0, 0x1e600              /* mstatus: FS 14:13, VS 10:9, XS 16:15, all dirty */
    csrs mstatus, t0
    la t0, 4f
    csrw mtvec, t0
    la sp, __stack
    la tp, __tls_base
    la t0, __bss_start
    la t1, __bss_end
1:  bgeu t0, t1, 2f
    sd zero, 0(t0)
    addi t0, t0, 8
    j 1b
2:  li a0, 0
    li a1, 0
    call main
    call exit
3:  wfi
    j 3b

    .balign 4
4:  csrr a0, mcause             /* a trap ends the program */
    csrr a1, mepc
    csrr a2, mtval
    la sp, __stack
    call machine_trap
    j 3b
