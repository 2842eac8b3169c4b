package volume

import "samovar/internal/fault"

// Member is one replica of a group, as the record states it.
type Member struct {
	Pool   PoolID `json:"pool"`
	InSync bool   `json:"inSync"`
	// Last and LastID name the last generation in which the member was in-sync, while it is not. Zero: never.
	Last   Generation   `json:"last,omitempty"`
	LastID GenerationID `json:"lastId,omitzero"`
}

// Group is a set of pools that hold the same extents.
type Group struct {
	Members []Member `json:"members"`
}

// Run lays consecutive extents on one group.
type Run struct {
	First   uint32 `json:"first"`   // first extent
	Extents uint32 `json:"extents"` // how many
	Group   uint32 `json:"group"`   // index into Configuration.Groups
}

// Layout maps every extent of a volume to a group. Runs are in order, without gaps. A mirrored volume has one
// run on group 0; a spread volume has many.
type Layout struct {
	ExtentSize uint64 `json:"extentSize"` // bytes, a power of two
	Runs       []Run  `json:"runs"`
}

// Configuration is the record of a volume: the one source of who is right. It stands in the cluster store, and
// every replica keeps the last one that it accepted.
type Configuration struct {
	Volume       ID           `json:"volume"`
	Name         string       `json:"name"`
	Size         uint64       `json:"size"` // bytes, a multiple of SectorSize
	Layout       Layout       `json:"layout"`
	Groups       []Group      `json:"groups"`
	Protocol     string       `json:"protocol"` // "C"
	Epoch        Epoch        `json:"epoch"`
	Engine       EngineID     `json:"engine,omitzero"` // zero: detached
	Generation   Generation   `json:"generation"`
	GenerationID GenerationID `json:"generationId"`
	Holder       string       `json:"holder,omitempty"` // node of the engine, for people and refusals
	Mode         string       `json:"mode,omitempty"`   // how it was attached: "explicit", "automatic", "recovery"
	// Revision is where this record was read; the cluster store keeps it, not the record's own bytes.
	Revision Revision `json:"-"`
}

// Clone copies the record so that the copy can be changed.
func (c Configuration) Clone() Configuration {
	c.Layout.Runs = append([]Run(nil), c.Layout.Runs...)
	groups := make([]Group, len(c.Groups))
	for i, g := range c.Groups {
		groups[i].Members = append([]Member(nil), g.Members...)
	}
	c.Groups = groups
	return c
}

// Fence is the fence that the record's engine raises.
func (c Configuration) Fence() Fence { return Fence{Epoch: c.Epoch, Engine: c.Engine} }

// Member finds the member on pool in group 0 and tells whether there is one.
func (c Configuration) Member(pool PoolID) (Member, bool) {
	if len(c.Groups) > 0 {
		for _, m := range c.Groups[0].Members {
			if m.Pool == pool {
				return m, true
			}
		}
	}
	return Member{}, false
}

// Validate checks the record as it may come from outside: sizes, layout, groups.
func (c Configuration) Validate() error {
	op := "check configuration of volume " + c.Name
	bad := func(text string) error { return fault.New(fault.Invalid, op, text) }
	es := c.Layout.ExtentSize
	switch {
	case c.Volume == ID{}:
		return bad("no volume id")
	case c.Size == 0 || c.Size%SectorSize != 0 || c.Size > MaxSize:
		return bad("size must be a multiple of 512 bytes, above zero and at most 16 TiB")
	case es < MinExtentSize || es > MaxExtentSize || es&(es-1) != 0:
		return bad("extent size must be a power of two from 1 MiB to 1 GiB")
	case c.Protocol != "C":
		return bad("protocol " + c.Protocol + " needs a newer version of samovar; this one speaks C")
	case len(c.Groups) != 1 || len(c.Layout.Runs) != 1:
		return bad("spread volumes need a newer version of samovar; this one serves mirrored ones")
	}
	next := uint32(0)
	for _, r := range c.Layout.Runs {
		if r.First != next || r.Extents == 0 || int(r.Group) >= len(c.Groups) {
			return bad("the layout has a gap or names a group that does not exist")
		}
		next += r.Extents
	}
	if uint64(next) != (c.Size+es-1)/es {
		return bad("the layout does not cover the size")
	}
	for _, g := range c.Groups {
		if len(g.Members) == 0 || len(g.Members) > MaxMembers {
			return bad("a group needs 1 to 16 replicas")
		}
		seen, inSync := map[PoolID]bool{}, 0
		for _, m := range g.Members {
			if m.Pool == (PoolID{}) || seen[m.Pool] {
				return bad("a group names a pool twice, or one without id")
			}
			seen[m.Pool] = true
			if m.InSync {
				inSync++
			}
		}
		if inSync == 0 {
			return bad("no replica is in-sync")
		}
	}
	return nil
}

// Mirrored lays a volume of size bytes on one group.
func Mirrored(size, extentSize uint64) Layout {
	return Layout{ExtentSize: extentSize, Runs: []Run{{Extents: uint32((size + extentSize - 1) / extentSize)}}}
}
