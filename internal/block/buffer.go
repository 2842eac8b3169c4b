package block

import (
	"math/bits"
	"sync"
	"sync/atomic"
	"unsafe"
)

// Alignment is the address alignment of every buffer, enough for O_DIRECT on disks with 4 KiB blocks.
const Alignment = 4096

// Buffer is a counted, aligned piece of memory from a pool of power-of-two sizes. It starts with one
// reference; the last Release gives it back, after which nobody may touch it.
type Buffer struct {
	data  []byte // Length bytes in use, of cap memory
	whole []byte // the aligned memory, a power of two
	refs  atomic.Int32
	pool  *sync.Pool // nil: too large to keep
}

// Pool hands out buffers. The zero value is not usable: use NewPool.
type Pool struct {
	classes [largestClass - smallestClass + 1]sync.Pool
}

const (
	smallestClass = 12 // 4 KiB
	largestClass  = 25 // 32 MiB
)

// NewPool makes an empty pool.
func NewPool() *Pool { return &Pool{} }

// Get returns a buffer of n bytes with one reference. Its content is undefined.
func (p *Pool) Get(n int) *Buffer {
	class := max(bits.Len(uint(max(n, 1)-1)), smallestClass)
	if class > largestClass {
		b := &Buffer{whole: aligned(n)}
		b.data = b.whole[:n]
		b.refs.Store(1)
		return b
	}
	pool := &p.classes[class-smallestClass]
	b, _ := pool.Get().(*Buffer)
	if b == nil {
		b = &Buffer{whole: aligned(1 << class), pool: pool}
	}
	b.data = b.whole[:n]
	b.refs.Store(1)
	return b
}

func aligned(n int) []byte {
	raw := make([]byte, n+Alignment)
	skip := int(-uintptr(unsafe.Pointer(&raw[0])) & (Alignment - 1))
	return raw[skip : skip+n : skip+n]
}

// Bytes is the content.
func (b *Buffer) Bytes() []byte { return b.data }

// Len is the number of bytes in use.
func (b *Buffer) Len() int { return len(b.data) }

// Aligned is the memory behind the content, rounded up to Alignment, for O_DIRECT of a short tail.
func (b *Buffer) Aligned() []byte {
	n := (len(b.data) + Alignment - 1) &^ (Alignment - 1)
	return b.whole[:min(n, len(b.whole))]
}

// Retain adds a reference.
func (b *Buffer) Retain() *Buffer {
	if b.refs.Add(1) < 2 {
		panic("block: Retain of a released buffer")
	}
	return b
}

// Release drops a reference; nil is allowed.
func (b *Buffer) Release() {
	if b == nil {
		return
	}
	switch n := b.refs.Add(-1); {
	case n < 0:
		panic("block: Release of a released buffer")
	case n == 0 && b.pool != nil:
		b.pool.Put(b)
	}
}
