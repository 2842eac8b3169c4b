package control

import (
	"context"
	"encoding/hex"
	"time"

	"samovar/internal/driver/replicahost"
	"samovar/internal/fault"
	"samovar/internal/resource"
	"samovar/internal/volume"
)

const (
	verifyStep      = 16 << 20 // compared at once
	verifyFine      = 64 << 10 // to which differences are narrowed down
	verifyTries     = 5        // of a step whose hold did not last
	differencesKept = 100
)

type checksumRequest struct {
	Volume volume.ID     `json:"volume"`
	Pool   volume.PoolID `json:"pool"`
	Offset uint64        `json:"offset"`
	Length uint64        `json:"length"`
}

type checksumAnswer struct {
	Sum string `json:"sum"`
}

func (c *Control) checksum(q checksumRequest) (checksumAnswer, error) {
	sum, err := c.host.Checksum(replicahost.Key{Volume: q.Volume, Pool: q.Pool}, volume.Range{Offset: q.Offset, Length: q.Length})
	return checksumAnswer{hex.EncodeToString(sum[:])}, err
}

// Verify compares all in-sync copies of a volume on the node that holds it; one that nobody holds is held for that
// time.
func (c *Control) Verify(ctx context.Context, name string, progress func(done, todo uint64)) (resource.Verified, error) {
	id, err := c.lookUp(ctx, name)
	if err != nil {
		return resource.Verified{}, err
	}
	record, err := records{c.opts.Store}.Look(ctx, id)
	if err != nil {
		return resource.Verified{}, err
	}
	if record.Engine != (volume.EngineID{}) && record.Holder != c.opts.Node && c.view.online(record.Holder) {
		m, ok := find[memberRecord](c.view, "members/"+record.Holder)
		if !ok {
			return resource.Verified{}, notFound("node", record.Holder)
		}
		return c.opts.Peers.Verify(ctx, m.API, name, progress)
	}
	return c.verifyHere(ctx, name, progress)
}

func (c *Control) verifyHere(ctx context.Context, name string, progress func(done, todo uint64)) (resource.Verified, error) {
	h, err := c.hold(ctx, name, modeRecovery)
	if err != nil {
		return resource.Verified{}, err
	}
	defer c.leave(h)
	v := verification{c: c, h: h, record: h.att.Status().Record}
	for _, m := range h.att.Status().Members {
		if m.InSync {
			v.pools = append(v.pools, m.Pool)
		}
	}
	if len(v.pools) < 2 {
		return resource.Verified{}, fault.New(fault.Unavailable, "compare volume "+name,
			"only one copy is in sync: there is nothing to compare it with (samovar volume info "+name+" says why)")
	}
	result := resource.Verified{At: time.Now().UTC(), Equal: true, Copies: len(v.pools)}
	for off := uint64(0); off < v.record.Size; off += verifyStep {
		at := volume.Range{Offset: off, Length: min(verifyStep, v.record.Size-off)}
		found, err := v.step(ctx, at)
		if err != nil {
			return resource.Verified{}, err
		}
		if len(found) > 0 {
			result.Equal = false
			room := differencesKept - len(result.Differences)
			result.Differences = append(result.Differences, found[:min(room, len(found))]...)
		}
		result.Bytes += at.Length
		if progress != nil {
			progress(result.Bytes, v.record.Size)
		}
	}
	level, reason, text := "info", "verified", "all copies are equal"
	if !result.Equal {
		level, reason, text = "error", "copies-differ", "copies differ: samovar volume verify "+name+" says where"
	}
	c.event("volume "+name, reason, level, text)
	err = c.want(ctx, h.id, func(w *wantRecord) { w.Verified = &result })
	return result, err
}

// verification is one comparison of all copies.
type verification struct {
	c      *Control
	h      *held
	record volume.Configuration
	pools  []volume.PoolID
}

// step compares one range while nobody writes to it. A replica that left meanwhile is an error: the comparison says
// something about named copies or nothing.
func (v *verification) step(ctx context.Context, at volume.Range) ([]resource.Difference, error) {
	for range verifyTries {
		release, err := v.h.att.Hold(ctx, at)
		if err != nil {
			return nil, err
		}
		found, err := v.compare(ctx, at)
		lasted := release()
		switch {
		case err != nil:
			return nil, err
		case v.h.att.Status().Record.Generation != v.record.Generation:
			return nil, fault.New(fault.Unavailable, "compare volume "+v.record.Name,
				"a copy left or joined meanwhile (samovar volume info "+v.record.Name+"); try again")
		case lasted:
			return found, nil
		}
	}
	return nil, fault.New(fault.Unavailable, "compare volume "+v.record.Name,
		"reading its copies takes too long to keep writes waiting; try again when its nodes are less busy")
}

// compare narrows differences down.
func (v *verification) compare(ctx context.Context, at volume.Range) ([]resource.Difference, error) {
	sums := map[string]string{}
	equal := true
	first := ""
	for i, pool := range v.pools {
		p, ok := v.c.view.pool(pool)
		if !ok {
			return nil, notFound("pool", pool.String())
		}
		q := checksumRequest{Volume: v.record.Volume, Pool: pool, Offset: at.Offset, Length: at.Length}
		a, err := call[checksumAnswer](ctx, v.c, p.Node, "checksum", q)
		if err != nil {
			return nil, err
		}
		sums[p.Name] = a.Sum
		if i == 0 {
			first = a.Sum
		}
		equal = equal && a.Sum == first
	}
	if equal {
		return nil, nil
	}
	if at.Length <= verifyFine {
		return []resource.Difference{{Offset: at.Offset, Length: at.Length, Sums: sums}}, nil
	}
	var found []resource.Difference
	part := (at.Length/16 + verifyFine) / verifyFine * verifyFine
	for off := at.Offset; off < at.End() && len(found) < differencesKept; off += part {
		inner, err := v.compare(ctx, volume.Range{Offset: off, Length: min(part, at.End()-off)})
		if err != nil {
			return nil, err
		}
		found = append(found, inner...)
	}
	return found, nil
}
