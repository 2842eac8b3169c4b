// Package memory is a file system in memory that can crash, fail and fill up, for tests of everything that
// stands on disk.FS. It must not know who uses it.
//
//	           WriteAt, Rename ...            Sync, SyncDir
//	caller ──────────────────────▶ cache ───────────────────▶ stable
//	                                 │
//	                                 └─ Crash: every pending 512-byte sector, size, name change by itself is
//	                                    kept or lost, by the seed; a sector written several times since the
//	                                    last Sync may be found in any of its versions
//
// That is harsher than any journaling file system: a rename may outlive the contents of the file, a later write
// an earlier one. After Crash the machine is up again; files and locks from before are dead.
//
// Deterministic: with one caller at a time, the same seed and calls give the same disk.
package memory

import (
	"io"
	"io/fs"
	"math/rand/v2"
	"path"
	"slices"
	"strings"
	"sync"
	"syscall"

	"samovar/internal/store/disk"
)

const (
	sectorSize = 512
	blockSize  = 4096 // granule of allocation
)

// Op names a kind of call, for hooks.
type Op string

// The calls that a hook sees; all but Read, Space and List change the disk and count as steps.
const (
	Open     Op = "open" // an existing file
	Make     Op = "create"
	Mkdir    Op = "mkdir"
	List     Op = "list"
	Read     Op = "read"
	Write    Op = "write"
	Sync     Op = "sync"
	SetSize  Op = "set size"
	Punch    Op = "punch"
	Zero     Op = "zero"
	Allocate Op = "allocate"
	Rename   Op = "rename"
	Remove   Op = "remove"
	SyncDir  Op = "sync folder"
	Space    Op = "space"
)

// Call is one call, as a hook sees it.
type Call struct {
	Op             Op
	Path           string // for Rename, the new name
	Offset, Length int64
}

// Fault is what a hook makes of a call. The zero value lets it pass. Happened: the caller gets Err, but the
// effect took place. A Sync that fails without having happened drops dirty data and marks it clean, as Linux
// does.
type Fault struct {
	Err      error
	Happened bool
}

// ErrCrashed is the answer to everything between the crash point and Crash, and for ever to older handles.
var ErrCrashed = syscall.ENODEV

// Options shape the disk.
type Options struct {
	Capacity int64 // bytes; 0: no limit
	// Direct makes files opened with disk.Direct insist on this alignment; zero: they are refused.
	Direct disk.Limits
	// Bare: neither ZeroRange nor PunchHole work.
	Bare bool
	// HideHoles: every byte of a file counts as data.
	HideHoles bool
	// Queue: there are queues. They do all within Submit, and give some requests back with disk.ErrAgain.
	Queue bool
}

// FS is the file system.
type FS struct {
	mu      sync.Mutex
	options Options
	rng     *rand.Rand
	root    *node
	used    int64 // bytes allocated
	steps   int
	crashAt int // the step at which the power goes; 0: never
	down    bool
	epoch   int // grows with every Crash
	hook    func(Call) Fault
	locks   map[*node]string
}

var _ disk.FS = (*FS)(nil)

// New makes an empty disk with the root folder "/".
func New(seed uint64, options Options) *FS {
	return &FS{
		options: options, rng: rand.New(rand.NewPCG(seed, 0x5a3)), root: newFolder(), locks: map[*node]string{},
	}
}

// Hook sets what is asked before every call; nil for none. It must not call the file system.
func (m *FS) Hook(hook func(Call) Fault) {
	m.mu.Lock()
	m.hook = hook
	m.mu.Unlock()
}

// Steps is how many changing calls there were.
func (m *FS) Steps() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.steps
}

// CrashAt lets the power go in the middle of the changing call with this number (as Steps counts). 0: never.
func (m *FS) CrashAt(step int) {
	m.mu.Lock()
	m.crashAt = step
	m.mu.Unlock()
}

// SetCapacity changes the size of the disk; 0 is no limit.
func (m *FS) SetCapacity(capacity int64) {
	m.mu.Lock()
	m.options.Capacity = capacity
	m.mu.Unlock()
}

// Used is how many bytes are allocated.
func (m *FS) Used() int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.used
}

// enter counts and judges a call, with mu held. If it returns an error and not run, the call must do nothing
// and return it; with run, it does its work and then returns it.
func (m *FS) enter(call Call) (run bool, err error) {
	if m.down {
		return false, ErrCrashed
	}
	switch call.Op {
	case Read, Space, List, Open:
	default:
		m.steps++
		if m.crashAt != 0 && m.steps >= m.crashAt {
			m.down = true
			// The call is under way: its effect may have reached the cache. Sync and SyncDir change nothing
			// then: that each pending change may be kept by Crash says it all.
			return call.Op != Sync && call.Op != SyncDir && m.rng.IntN(2) == 0, ErrCrashed
		}
	}
	if m.hook != nil {
		if f := m.hook(call); f.Err != nil {
			return f.Happened, f.Err
		}
	}
	return true, nil
}

// find walks to a node; mu is held.
func (m *FS) find(name string) (*node, error) {
	n := m.root
	for part := range strings.SplitSeq(path.Clean(name), "/") {
		if part == "" {
			continue
		}
		if !n.dir {
			return nil, syscall.ENOTDIR
		}
		if n = n.names[part]; n == nil {
			return nil, fs.ErrNotExist
		}
	}
	return n, nil
}

// parent finds the folder of a name; mu is held.
func (m *FS) parent(name string) (*node, string, error) {
	dir, base := path.Split(path.Clean(name))
	n, err := m.find(dir)
	if err == nil && !n.dir {
		err = syscall.ENOTDIR
	}
	return n, base, err
}

func wrap(op Op, name string, err error) error {
	if err == nil {
		return nil
	}
	return &fs.PathError{Op: string(op), Path: name, Err: err}
}

// Open opens a file.
func (m *FS) Open(name string, flags disk.Flags) (disk.File, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f, err := m.open(name, flags)
	if err != nil {
		return nil, wrap(Open, name, err)
	}
	return f, nil
}

func (m *FS) open(name string, flags disk.Flags) (*file, error) {
	dir, base, err := m.parent(name)
	if m.down {
		err = ErrCrashed
	}
	if err != nil {
		return nil, err
	}
	limits := disk.Limits{Offset: 1, Memory: 1}
	if flags&disk.Direct != 0 {
		if limits = m.options.Direct; !limits.Direct {
			return nil, disk.ErrNoDirect
		}
	}
	n := dir.names[base]
	switch {
	case n == nil && flags&disk.Create == 0:
		return nil, fs.ErrNotExist
	case n != nil && flags&disk.Exclusive != 0:
		return nil, fs.ErrExist
	case n != nil && n.dir:
		return nil, syscall.EISDIR
	case n == nil:
		run, err := m.enter(Call{Op: Make, Path: name})
		if run {
			n = newFile()
			dir.change("", base, n)
		}
		if err != nil {
			return nil, err
		}
	default:
		if _, err := m.enter(Call{Op: Open, Path: name}); err != nil {
			return nil, err
		}
		if flags&disk.Truncate != 0 && n.size > 0 {
			run, err := m.enter(Call{Op: SetSize, Path: name})
			if run {
				m.setSize(n, 0)
			}
			if err != nil {
				return nil, err
			}
		}
	}
	return &file{fs: m, node: n, path: name, epoch: m.epoch, limits: limits}, nil
}

// Mkdir makes a folder.
func (m *FS) Mkdir(name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	dir, base, err := m.parent(name)
	if err == nil && dir.names[base] != nil {
		err = fs.ErrExist
	}
	if err != nil {
		return wrap(Mkdir, name, err)
	}
	run, err := m.enter(Call{Op: Mkdir, Path: name})
	if run {
		dir.change("", base, newFolder())
	}
	return wrap(Mkdir, name, err)
}

// ReadDir lists a folder in the order of names.
func (m *FS) ReadDir(name string) ([]disk.Entry, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	n, err := m.find(name)
	if err == nil && !n.dir {
		err = syscall.ENOTDIR
	}
	if err == nil {
		_, err = m.enter(Call{Op: List, Path: name})
	}
	if err != nil {
		return nil, wrap(List, name, err)
	}
	entries := make([]disk.Entry, 0, len(n.names))
	for base, child := range n.names {
		entries = append(entries, disk.Entry{Name: base, Dir: child.dir})
	}
	slices.SortFunc(entries, func(a, b disk.Entry) int { return strings.Compare(a.Name, b.Name) })
	return entries, nil
}

// Stat describes a file or folder.
func (m *FS) Stat(name string) (disk.Info, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	n, err := m.find(name)
	if m.down {
		err = ErrCrashed
	}
	if err != nil {
		return disk.Info{}, wrap("stat", name, err)
	}
	return n.info(), nil
}

// Rename moves a name; within one folder it is one change, which a crash keeps or loses whole.
func (m *FS) Rename(from, to string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return wrap(Rename, from, m.rename(from, to))
}

func (m *FS) rename(from, to string) error {
	dir, base, err := m.parent(from)
	if err != nil {
		return err
	}
	target, newBase, err := m.parent(to)
	if err != nil {
		return err
	}
	n, old := dir.names[base], target.names[newBase]
	switch {
	case n == nil:
		return fs.ErrNotExist
	case dir != target:
		return syscall.EXDEV // nobody here needs it, and its crashes would need a rule of their own
	case old != nil && (old.dir || n.dir):
		return fs.ErrExist
	}
	run, err := m.enter(Call{Op: Rename, Path: to})
	if run {
		dir.change(base, newBase, n)
		m.forget(old)
	}
	return err
}

// Remove takes away a file or an empty folder.
func (m *FS) Remove(name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	dir, base, err := m.parent(name)
	if err != nil {
		return wrap(Remove, name, err)
	}
	n := dir.names[base]
	switch {
	case n == nil:
		return wrap(Remove, name, fs.ErrNotExist)
	case n.dir && len(n.names) > 0:
		return wrap(Remove, name, syscall.ENOTEMPTY)
	}
	run, err := m.enter(Call{Op: Remove, Path: name})
	if run {
		dir.change(base, "", n)
		m.forget(n)
	}
	return wrap(Remove, name, err)
}

// forget gives the space of a file back that has lost its name. The bytes stay for a crash that brings the
// name back, and for those that have it open.
func (m *FS) forget(n *node) {
	if n != nil && !n.dir && !n.forgotten {
		n.forgotten = true
		m.used -= int64(len(n.blocks)) * blockSize
	}
}

// SyncDir makes the names in a folder lasting.
func (m *FS) SyncDir(name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	n, err := m.find(name)
	if err != nil {
		return wrap(SyncDir, name, err)
	}
	run, err := m.enter(Call{Op: SyncDir, Path: name})
	switch {
	case run:
		n.syncNames(nil)
	case !m.down:
		n.syncNames(m.rng)
	}
	return wrap(SyncDir, name, err)
}

// Space tells how full the disk is.
func (m *FS) Space(name string) (disk.Space, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, err := m.enter(Call{Op: Space, Path: name}); err != nil {
		return disk.Space{}, wrap(Space, name, err)
	}
	total := m.options.Capacity
	if total == 0 {
		total = 1 << 50
	}
	return disk.Space{Total: total, Free: max(0, total-m.used), BlockSize: blockSize, Kind: "memory"}, nil
}

// Lock takes an exclusive lock.
func (m *FS) Lock(name, holder string) (io.Closer, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f, err := m.open(name, disk.Create)
	if err != nil {
		return nil, wrap("lock", name, err)
	}
	if other, held := m.locks[f.node]; held {
		return nil, &disk.LockedError{Holder: other}
	}
	m.locks[f.node] = holder
	return &lock{fs: m, node: f.node, epoch: m.epoch}, nil
}

type lock struct {
	fs    *FS
	node  *node
	epoch int
}

func (l *lock) Close() error {
	l.fs.mu.Lock()
	defer l.fs.mu.Unlock()
	if l.fs.epoch == l.epoch {
		delete(l.fs.locks, l.node)
	}
	return nil
}
