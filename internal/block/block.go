// Package block is the face of a block device: requests, devices, and how to open one by name. Exports (NBD
// and later others) speak to it and know nothing of replication; drivers implement it.
//
// Ownership: a Request belongs to the device from Submit until Done is called, then to its maker again. A
// write's Data is retained by whoever still needs the bytes after Done, so the maker releases its own
// reference in Done and never changes the bytes.
package block

import "context"

// Op is what a request asks for.
type Op uint8

var opNames = [...]string{"", "read", "write", "trim", "zero", "flush"}

// String names the operation.
func (o Op) String() string {
	if int(o) < len(opNames) {
		return opNames[o]
	}
	return "unknown operation"
}

// The operations.
const (
	Read  Op = 1
	Write Op = 2
	Trim  Op = 3 // the range reads as zeroes afterwards; space is given back
	Zero  Op = 4 // the range reads as zeroes afterwards
	Flush Op = 5 // everything acknowledged before it is on stable storage
)

// Request is one I/O. Offset and Length are bytes. Reads get Data from the device (the maker releases it);
// writes carry Data of exactly Length bytes; the others carry none.
type Request struct {
	Op     Op
	FUA    bool // write, trim, zero: on stable storage before Done
	NoHole bool // zero: space stays allocated
	Offset uint64
	Length uint64
	Data   *Buffer
	// Done is called once, from any goroutine, and must not block. err carries a fault.Kind.
	Done func(r *Request, err error)
}

// Device is an open block device. Submit takes a batch, in order, and may block only to bound memory, so it is not
// called from a Done; the slice may be used again when it returns. Requests may complete in any order. A flush covers every request completed (on any opening of the device) before it
// was submitted. Requests out of bounds complete with fault.Invalid.
type Device interface {
	Size() uint64
	ReadOnly() bool
	Submit(batch []*Request)
	// Close gives the opening back; requests still under way complete first.
	Close() error
}

// Info describes a device that can be opened.
type Info struct {
	Name     string
	Size     uint64
	ReadOnly bool
}

// Opener finds devices by name. Open may attach a volume; List and Info never do. Errors carry a fault.Kind:
// NotFound, Busy (naming the holder), Unavailable, Permission.
type Opener interface {
	Open(ctx context.Context, name string) (Device, error)
	Info(ctx context.Context, name string) (Info, error)
	List(ctx context.Context) ([]Info, error)
}
