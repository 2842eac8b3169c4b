package store

import (
	"path"
	"strconv"

	"samovar/internal/fault"
	"samovar/internal/store/disk"
)

// States of the spare file.
const (
	spareFull  = 0
	spareSpent = 1
	spareBusy  = 2
)

// Grant promises bytes of the pool to somebody who will write them later: they are no longer free for others.
// It is all or nothing. Reserve operations leave granted space alone; a holder releases what it has used, since
// then it counts as used.
func (p *Pool) Grant(bytes uint64) error {
	free, err := p.free()
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if taken := p.promised + p.claimed; free < taken || free-taken < bytes {
		return p.full(bytes, free-min(free, taken))
	}
	p.promised += bytes
	return nil
}

// Release takes a promise back. To release more than was granted is a mistake of the caller.
func (p *Pool) Release(bytes uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if bytes > p.promised {
		panic("store: more released than granted")
	}
	p.promised -= bytes
}

// Available is how many bytes a Grant could have.
func (p *Pool) Available() (uint64, error) {
	free, err := p.free()
	if err != nil {
		return 0, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return free - min(free, p.promised+p.claimed), nil
}

// claim sets bytes aside while they are being allocated: until the file system counts them as used.
func (p *Pool) claim(bytes uint64) (release func(), err error) {
	free, err := p.free()
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if taken := p.promised + p.claimed; free < taken || free-taken < bytes {
		return nil, p.full(bytes, free-min(free, taken))
	}
	p.claimed += bytes
	return func() {
		p.mu.Lock()
		p.claimed -= bytes
		p.mu.Unlock()
	}, nil
}

func (p *Pool) full(want, have uint64) error {
	return fault.New(fault.NoSpace, "reserve space on pool "+p.identity.Name,
		strconv.FormatUint(want, 10)+" bytes are wanted, "+strconv.FormatUint(have, 10)+
			" are free besides reserve and promises; free space on the pool")
}

// free asks the file system, and takes the reserve off.
func (p *Pool) free() (uint64, error) {
	space, err := p.fs.Space(p.dir)
	if err != nil {
		return 0, diskFault("measure pool "+p.identity.Name, err)
	}
	return uint64(space.Free) - min(uint64(space.Free), p.reserve), nil
}

// The spare is a file that only takes space. When a small file cannot be rewritten for lack of it, the spare is
// cut and the rewriting tried once more: a replica must be able to say that it is out, above all on a full disk.

// spendSpare gives the spare's space to others; false if it is spent already.
func (p *Pool) spendSpare() bool {
	if p.options.Spare < 0 || !p.spareUsed.CompareAndSwap(spareFull, spareBusy) {
		return false
	}
	defer p.spareUsed.Store(spareSpent)
	f, err := p.fs.Open(path.Join(p.dir, spareName), 0)
	if err != nil {
		return false
	}
	defer f.Close()
	p.options.Logger.Warn("the pool is full: its spare space is used for small files", "pool", p.identity.Name)
	return f.SetSize(0) == nil
}

// fillSpare takes space for the spare again, if it is spent and there is any beyond the reserve's need.
func (p *Pool) fillSpare() {
	if p.options.Spare < 0 || !p.spareUsed.CompareAndSwap(spareSpent, spareBusy) {
		return
	}
	state := int32(spareSpent)
	defer func() { p.spareUsed.Store(state) }()
	f, err := p.fs.Open(path.Join(p.dir, spareName), disk.Create)
	if err != nil {
		return
	}
	defer f.Close()
	if info, err := f.Info(); err == nil && info.Allocated >= p.options.Spare {
		state = spareFull
		return
	}
	if space, err := p.fs.Space(p.dir); err != nil || space.Free < 2*p.options.Spare {
		return // half full it would only fight with those that it is for
	}
	if f.Allocate(0, p.options.Spare) == nil && f.SetSize(p.options.Spare) == nil {
		state = spareFull
	} else {
		_ = f.SetSize(0)
	}
}
