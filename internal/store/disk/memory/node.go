package memory

import (
	"maps"
	"math/rand/v2"
	"slices"

	"samovar/internal/store/disk"
)

// sector is never changed once it stands in a node: nodes share them. nil means nothing is stored, it reads
// as zero.
type sector = *[sectorSize]byte

// node is a file or folder, with what is in the cache and what is on stable storage.
type node struct {
	dir bool

	// Of a folder.
	names, stableNames map[string]*node
	changes            []change // since the last SyncDir, in order

	// Of a file.
	size, stableSize int64
	sizes            []int64 // since the last Sync
	data, stable     map[int64]sector
	dirty            map[int64][]sector // versions since the last Sync, newest last
	blocks           map[int64]bool     // allocated
	forgotten        bool               // without a name, its blocks are given back
}

// change moves, makes (from empty) or removes (to empty) one name.
type change struct {
	from, to string
	node     *node
}

func newFolder() *node {
	return &node{dir: true, names: map[string]*node{}, stableNames: map[string]*node{}}
}

func newFile() *node {
	return &node{
		data: map[int64]sector{}, stable: map[int64]sector{}, dirty: map[int64][]sector{}, blocks: map[int64]bool{},
	}
}

func (c change) apply(names map[string]*node) {
	if c.from != "" && names[c.from] == c.node {
		delete(names, c.from)
	}
	if c.to != "" {
		names[c.to] = c.node
	}
}

func (n *node) change(from, to string, child *node) {
	c := change{from, to, child}
	c.apply(n.names)
	n.changes = append(n.changes, c)
}

// syncNames makes pending changes lasting: all of them, or by chance if rng is given.
func (n *node) syncNames(rng *rand.Rand) {
	for _, c := range n.changes {
		if rng == nil || rng.IntN(2) == 0 {
			c.apply(n.stableNames)
		}
	}
	n.changes = nil
}

func (n *node) info() disk.Info {
	return disk.Info{Dir: n.dir, Size: n.size, Allocated: int64(len(n.blocks)) * blockSize}
}

// put stores a sector in the cache.
func (n *node) put(index int64, s sector) {
	if s == nil {
		delete(n.data, index)
	} else {
		n.data[index] = s
	}
	n.dirty[index] = append(n.dirty[index], s)
}

// resize sets the size in the cache.
func (n *node) resize(size int64) {
	if size != n.size {
		n.size = size
		n.sizes = append(n.sizes, size)
	}
}

func keep(m map[int64]sector, index int64, s sector) {
	if s == nil {
		delete(m, index)
	} else {
		m[index] = s
	}
}

// sync puts everything on stable storage.
func (n *node) sync() {
	for index, versions := range n.dirty {
		keep(n.stable, index, versions[len(versions)-1])
	}
	n.stableSize = n.size
	clear(n.dirty)
	n.sizes = nil
}

// failSync is a Sync that failed: some dirty data went to the disk, the rest did not and counts as clean. Of
// that, some is still in the cache and some reads as it did before.
func (n *node) failSync(rng *rand.Rand) {
	for _, index := range slices.Sorted(maps.Keys(n.dirty)) {
		versions := n.dirty[index]
		switch rng.IntN(3) {
		case 0:
			keep(n.stable, index, versions[len(versions)-1])
		case 1:
			keep(n.data, index, n.stable[index])
		}
	}
	clear(n.dirty)
	n.sizes = nil
	if rng.IntN(2) == 0 {
		n.stableSize = n.size
	}
}

// settle turns a file into what a crash leaves of it.
func (n *node) settle(rng *rand.Rand) {
	for _, index := range slices.Sorted(maps.Keys(n.dirty)) {
		versions := n.dirty[index]
		if pick := rng.IntN(len(versions) + 1); pick > 0 {
			keep(n.stable, index, versions[pick-1])
		}
	}
	if len(n.sizes) > 0 {
		if pick := rng.IntN(len(n.sizes) + 1); pick > 0 {
			n.stableSize = n.sizes[pick-1]
		}
	}
	n.size, n.sizes = n.stableSize, nil
	clear(n.dirty)
	for index := range n.stable {
		if index*sectorSize >= n.size {
			delete(n.stable, index)
		}
	}
	n.data = maps.Clone(n.stable)
	n.blocks = map[int64]bool{} // a reservation without data is lost: nobody may count on it
	for index := range n.data {
		n.blocks[index*sectorSize/blockSize] = true
	}
}

// Crash takes the power away and gives it back: of everything not synced, each piece is kept or lost by chance.
func (m *FS) Crash() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.down, m.crashAt, m.hook = false, 0, nil
	m.epoch++
	m.locks = map[*node]string{}
	m.used = 0
	seen := map[*node]bool{}
	var settle func(n *node)
	settle = func(n *node) {
		if seen[n] {
			return
		}
		seen[n] = true
		n.forgotten = false
		if !n.dir {
			n.settle(m.rng)
			m.used += int64(len(n.blocks)) * blockSize
			return
		}
		n.syncNames(m.rng)
		n.names = maps.Clone(n.stableNames)
		for _, name := range slices.Sorted(maps.Keys(n.names)) {
			settle(n.names[name])
		}
	}
	settle(m.root)
}

// Kill ends every handle and lock as the death of the process does: the cache stays, and with it all that was
// written.
func (m *FS) Kill() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.down, m.crashAt, m.hook = false, 0, nil
	m.epoch++
	m.locks = map[*node]string{}
}
