"""What the clocked controller remembers: what stands where in its arrays."""

# A request: where it falls, what it is; its transfer, and another that its column command serves too; accepted, done.
CHANNEL, BANK, ROW, BURST, IS_WRITE, FINAL, TIME, TRANSFER, ALSO, ACCEPTED, DONE = range(11)
# Of a bank: its open row or -1, accesses to it, commands in its queue.
OPEN, USED, LENGTH = range(3)
# Of a channel: the bank found last; refreshes that wait, and the bank that is next; writes still to drain; the transfer
# being served; the cycle of the last column command; the last transfer all of whose requests are here; activates.
TURN, REFRESHES, REFRESH_BANK, DRAIN, SERVED, LAST, COMPLETE, ACTIVATES = range(8)
# How many requests wait, reads then writes; and how many of them are of the transfer that is being accepted.
LENGTHS, OWN = 8, 10
# What has been issued: row hits, activates, reads, writes, refreshes, conflicts. Then the last four activates.
COUNTS, ACTS, CELLS = 12, 18, 22
# A transfer on its way: the cycle before which it does not begin; its requests, from the first one to past the last;
# which of them comes next, and how many of those before it are held.
START, BEGIN, PAST, UPCOMING, HELD = range(5)
# The whole DRAM: the cycle that comes next; that of the first refresh; transfers offered so far; the number of the one
# that was last to be accepted from, and which of those on their way is.
NOW, FIRST_REFRESH, OFFERED, ACCEPTING, AT = range(5)
