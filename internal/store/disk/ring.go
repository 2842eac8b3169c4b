//go:build linux

package disk

import (
	"fmt"
	"os"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ring is one io_uring(7) of the kernel: two queues in memory that both sides see.
//
//	         tail, ours               head, the kernel's
//	sqes  ───────▶ │ request │ request │ ───────▶ io_uring_enter takes them
//	cqes  ◀─────── │ result  │ result  │ ◀─────── the kernel adds them as they end
//	         head, ours               tail, the kernel's
//
// It does no locking: one goroutine at a time may call push and take back, one next, one enter.
type ring struct {
	fd      int
	rings   []byte // memory of both queues but for the requests
	memory  []byte // of the requests
	entries uint32

	sqHead, sqTail *uint32
	sqMask         uint32
	sqes           []submission

	cqHead, cqTail *uint32
	cqMask         uint32
	cqes           []completion
	flags          *uint32 // of the submission queue
}

// submission is struct io_uring_sqe.
type submission struct {
	opcode  uint8
	flags   uint8
	prio    uint16
	fd      int32
	offset  uint64
	address uint64
	length  uint32
	opFlags uint32
	user    uint64
	_       [3]uint64
}

// completion is struct io_uring_cqe.
type completion struct {
	user   uint64
	result int32
	flags  uint32
}

// parameters is struct io_uring_params.
type parameters struct {
	sqEntries, cqEntries, flags, sqThreadCPU, sqThreadIdle, features, wqFD uint32
	_                                                                      [3]uint32
	sq                                                                     struct {
		head, tail, mask, entries, flags, dropped, array, _ uint32
		_                                                   uint64
	}
	cq struct {
		head, tail, mask, entries, overflow, cqes, flags, _ uint32
		_                                                   uint64
	}
}

// From linux/io_uring.h; golang.org/x/sys has the numbers of the system calls, but not these.
const (
	setupClamp = 1 << 4

	featureSingleMap    = 1 << 0
	featureNoDrop       = 1 << 1
	featureSubmitStable = 1 << 2
	featuresNeeded      = featureSingleMap | featureNoDrop | featureSubmitStable

	mapRings       = 0
	mapSubmissions = 0x10000000

	flagOverflow = 1 << 1

	enterGetEvents = 1 << 0

	opWriteV = 2
	opFsync  = 3
	opRead   = 22
	opWrite  = 23

	fsyncDataOnly = 1 << 0
)

// openRing makes a ring for entries requests under way: the kernel makes room for twice as many results.
func openRing(entries int) (*ring, error) {
	p := parameters{flags: setupClamp}
	fd, _, errno := unix.Syscall(unix.SYS_IO_URING_SETUP, uintptr(entries), uintptr(unsafe.Pointer(&p)), 0)
	if errno != 0 {
		return nil, os.NewSyscallError("io_uring_setup", errno)
	}
	r := &ring{fd: int(fd), entries: p.sqEntries}
	if p.features&featuresNeeded != featuresNeeded || int(p.sqEntries) < entries {
		r.unmap()
		_ = unix.Close(r.fd)
		return nil, fmt.Errorf("io_uring_setup: the kernel is too old: features %#x, %d entries", p.features, p.sqEntries)
	}
	size := max(p.sq.array+4*p.sqEntries, p.cq.cqes+uint32(unsafe.Sizeof(completion{}))*p.cqEntries)
	var err error
	if r.rings, err = r.mapped(mapRings, int(size)); err == nil {
		r.memory, err = r.mapped(mapSubmissions, int(p.sqEntries)*int(unsafe.Sizeof(submission{})))
	}
	if err != nil {
		r.unmap()
		_ = unix.Close(r.fd)
		return nil, os.NewSyscallError("mmap of io_uring", err)
	}
	word := func(at uint32) *uint32 { return (*uint32)(unsafe.Pointer(&r.rings[at])) }
	r.sqHead, r.sqTail, r.sqMask, r.flags = word(p.sq.head), word(p.sq.tail), *word(p.sq.mask), word(p.sq.flags)
	r.cqHead, r.cqTail, r.cqMask = word(p.cq.head), word(p.cq.tail), *word(p.cq.mask)
	r.sqes = unsafe.Slice((*submission)(unsafe.Pointer(&r.memory[0])), p.sqEntries)
	r.cqes = unsafe.Slice((*completion)(unsafe.Pointer(&r.rings[p.cq.cqes])), p.cqEntries)
	for i, array := uint32(0), unsafe.Slice(word(p.sq.array), p.sqEntries); i < p.sqEntries; i++ {
		array[i] = i // each place of the queue has its own request, for ever
	}
	return r, nil
}

func (r *ring) mapped(offset int64, size int) ([]byte, error) {
	return unix.Mmap(r.fd, offset, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_POPULATE)
}

// push puts a request into the queue; the kernel takes it with the next enter. There is room as long as there are
// at most entries requests under way.
func (r *ring) push(s submission) {
	tail := atomic.LoadUint32(r.sqTail)
	if tail-atomic.LoadUint32(r.sqHead) >= r.entries {
		panic("disk: more requests than the ring was made for")
	}
	r.sqes[tail&r.sqMask] = s
	atomic.StoreUint32(r.sqTail, tail+1)
}

// pending is how many requests the kernel has not taken.
func (r *ring) pending() uint32 { return atomic.LoadUint32(r.sqTail) - atomic.LoadUint32(r.sqHead) }

// takeBack takes the newest request out again that the kernel has not taken. Nobody may be in enter.
func (r *ring) takeBack() (user uint64) {
	tail := atomic.LoadUint32(r.sqTail) - 1
	atomic.StoreUint32(r.sqTail, tail)
	return r.sqes[tail&r.sqMask].user
}

// enter lets the kernel take up to submit requests.
func (r *ring) enter(submit uint32) error {
	_, _, errno := unix.Syscall6(unix.SYS_IO_URING_ENTER, uintptr(r.fd), uintptr(submit), 0, 0, 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}

// next takes one result.
func (r *ring) next() (c completion, ok bool) {
	head := atomic.LoadUint32(r.cqHead)
	if head == atomic.LoadUint32(r.cqTail) {
		// Never, for there is room for all; a kernel that thinks otherwise keeps results until it is entered.
		if atomic.LoadUint32(r.flags)&flagOverflow == 0 {
			return c, false
		}
		_, _, _ = unix.Syscall6(unix.SYS_IO_URING_ENTER, uintptr(r.fd), 0, 0, enterGetEvents, 0, 0)
		if head == atomic.LoadUint32(r.cqTail) {
			return c, false
		}
	}
	c = r.cqes[head&r.cqMask]
	atomic.StoreUint32(r.cqHead, head+1)
	return c, true
}

func (r *ring) unmap() {
	if r.rings != nil {
		_ = unix.Munmap(r.rings)
	}
	if r.memory != nil {
		_ = unix.Munmap(r.memory)
	}
	r.rings, r.memory = nil, nil
}
