package nbd

import (
	"bytes"
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"samovar/internal/block"
	"samovar/internal/fault"
)

// memory is a device in memory with a volatile cache: a flush makes stable exactly what was completed before
// the flush was submitted. Openings share it. With hold set, requests wait in submitted for complete.
type memory struct {
	readOnly bool
	hold     bool
	pool     *block.Pool

	mu       sync.Mutex
	fail     func(r *block.Request) error // an error instead of doing it; may be nil
	data     []byte
	stable   []byte
	dirty    map[uint64]uint64 // offset to length of completed, unflushed changes
	batches  [][]block.Request // copies of what Submit brought
	openings int
	opened   int

	submitted chan *block.Request
}

func newMemory(size int) *memory {
	return &memory{
		pool: block.NewPool(), data: make([]byte, size), stable: make([]byte, size),
		dirty: map[uint64]uint64{}, submitted: make(chan *block.Request, 4096),
	}
}

// opening is one Device of a memory.
type opening struct{ *memory }

func (m *memory) open() block.Device {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.openings++
	m.opened++
	return opening{m}
}

func (o opening) Size() uint64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	return uint64(len(o.data))
}

func (o opening) ReadOnly() bool { return o.readOnly }

func (o opening) Close() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.openings--
	return nil
}

func (m *memory) counts() (now, ever int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.openings, m.opened
}

func (o opening) Submit(batch []*block.Request) {
	o.mu.Lock()
	copies := make([]block.Request, len(batch))
	for i, r := range batch {
		copies[i] = *r
	}
	o.batches = append(o.batches, copies)
	o.mu.Unlock()
	for _, r := range batch {
		if o.hold {
			o.submitted <- r
		} else {
			o.complete(r)
		}
	}
}

// complete does a request and calls its Done.
func (m *memory) complete(r *block.Request) {
	r.Done(r, m.apply(r))
}

func (m *memory) failWith(fail func(r *block.Request) error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.fail = fail
}

// content is a copy of what reads return, and of what would be left after a loss of power.
func (m *memory) content() (data, stable []byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return bytes.Clone(m.data), bytes.Clone(m.stable)
}

// seen is every request that reached the device, as it was.
func (m *memory) seen() []block.Request {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Concat(m.batches...)
}

func (m *memory) apply(r *block.Request) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.fail != nil {
		if err := m.fail(r); err != nil {
			return err
		}
	}
	end := r.Offset + r.Length
	if r.Op != block.Flush && end > uint64(len(m.data)) {
		return fault.New(fault.Invalid, "memory", "out of bounds")
	}
	switch r.Op {
	case block.Read:
		r.Data = m.pool.Get(int(r.Length))
		copy(r.Data.Bytes(), m.data[r.Offset:end])
		return nil
	case block.Write:
		copy(m.data[r.Offset:end], r.Data.Bytes())
	case block.Trim, block.Zero:
		clear(m.data[r.Offset:end])
	case block.Flush:
		for at, n := range m.dirty {
			copy(m.stable[at:at+n], m.data[at:at+n])
		}
		clear(m.dirty)
		return nil
	}
	if r.FUA {
		copy(m.stable[r.Offset:end], m.data[r.Offset:end])
	} else {
		m.dirty[r.Offset] = max(m.dirty[r.Offset], r.Length)
	}
	return nil
}

// next waits for the next held request.
func (m *memory) next(t testing.TB) *block.Request {
	t.Helper()
	select {
	case r := <-m.submitted:
		return r
	case <-time.After(patience):
		t.Fatal("no request reached the device")
		return nil
	}
}

// volumes is an opener for tests. Some names are refused, see refusals.
type volumes struct {
	mu      sync.Mutex
	devices map[string]*memory
	blocked chan struct{} // Open of "blocked" closes it and waits for its context
}

var refusals = map[string]error{
	"busy":        fault.New(fault.Busy, "open volume busy", "attached on node b since 10:00"),
	"unavailable": fault.New(fault.Unavailable, "open volume unavailable", "no in-sync replica is reached"),
	"forbidden":   fault.New(fault.Permission, "open volume forbidden", "not exported to this client"),
	"ending":      fault.New(fault.Shutdown, "open volume ending", ""),
	"broken":      fault.New(fault.Corrupt, "open volume broken", "the record fails its checksum"),
}

func newVolumes(devices map[string]*memory) *volumes {
	return &volumes{devices: devices, blocked: make(chan struct{})}
}

func (v *volumes) find(name string) (*memory, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if m := v.devices[name]; m != nil {
		return m, nil
	}
	if err := refusals[name]; err != nil {
		return nil, err
	}
	return nil, fault.New(fault.NotFound, "open volume "+name, "no such volume")
}

func (v *volumes) Open(ctx context.Context, name string) (block.Device, error) {
	if name == "blocked" {
		close(v.blocked)
		<-ctx.Done()
		return nil, fault.Wrap(fault.Aborted, "open volume blocked", ctx.Err())
	}
	m, err := v.find(name)
	if err != nil {
		return nil, err
	}
	return m.open(), nil
}

func (v *volumes) Info(_ context.Context, name string) (block.Info, error) {
	m, err := v.find(name)
	if err != nil {
		return block.Info{}, err
	}
	return block.Info{Name: name, Size: uint64(len(m.data)), ReadOnly: m.readOnly}, nil
}

func (v *volumes) List(context.Context) ([]block.Info, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.devices == nil {
		return nil, fault.New(fault.Unavailable, "list volumes", "the store is not reached")
	}
	infos := []block.Info{}
	for _, name := range sortedNames(v.devices) {
		infos = append(infos, block.Info{Name: name, Size: uint64(len(v.devices[name].data))})
	}
	return infos, nil
}
