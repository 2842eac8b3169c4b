package control

import (
	"context"
	"time"

	"samovar/internal/driver/replicahost"
	"samovar/internal/etcd/kv"
	"samovar/internal/replication/engine"
	"samovar/internal/resource"
	"samovar/internal/volume"
)

// progressMeter turns what is still missing into a rate.
type progressMeter struct {
	start   uint64 // bytes missing when it began
	began   time.Time
	last    uint64
	running bool
}

// update takes what is missing now.
func (p *progressMeter) update(missing uint64, now time.Time) *resource.Progress {
	if missing == 0 {
		p.running = false
		return nil
	}
	if !p.running {
		p.running, p.start, p.began, p.last = true, missing, now, missing
	}
	p.start = max(p.start, missing)
	done := p.start - missing
	out := &resource.Progress{Todo: p.start, Done: done}
	if s := now.Sub(p.began).Seconds(); s > 0 {
		out.Rate = uint64(float64(done) / s)
	}
	if out.Rate > 0 {
		out.Left = (time.Duration(missing/out.Rate) * time.Second).String()
	}
	return out
}

// publishStats tells the cluster what this node has, every few seconds and soon after a change.
func (c *Control) publishStats(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.nudge:
			if !pause(ctx, 50*time.Millisecond) {
				return
			}
		case <-time.After(time.Second):
		}
		c.mu.Lock()
		s := c.session
		c.mu.Unlock()
		if s == nil {
			continue
		}
		stats := encode(c.gatherStats())
		key := "stats/" + c.opts.Node
		old, had := c.view.get(key)
		if had && string(old.Value) == string(stats) && old.Lease == s.Lease() {
			continue
		}
		call, cancel := context.WithTimeout(ctx, 3*time.Second)
		out := c.opts.Store.Txn(call, nil, []kv.Change{{Key: key, Value: stats, Lease: s.Lease()}})
		cancel()
		if out.Verdict != kv.Applied && ctx.Err() == nil {
			c.opts.Logger.Debug("cannot publish this node's state", "error", out.Err)
		}
	}
}

func (c *Control) gatherStats() statsRecord {
	out := statsRecord{Run: c.run}
	if c.opts.Leader != nil {
		out.Leader = c.opts.Leader.LeaderName() == c.opts.Node
	}
	c.mu.Lock()
	var pools []*localPool
	for _, lp := range c.pools {
		pools = append(pools, lp)
	}
	var engines []*held
	for _, h := range c.held {
		engines = append(engines, h)
	}
	c.mu.Unlock()
	each(c.view, "pools/", func(_ string, p poolRecord) {
		for _, lp := range pools {
			if lp.record.ID == p.ID {
				out.Pools = append(out.Pools, c.poolStats(lp, &out))
			}
		}
	})
	each(c.view, "volumes/", func(_ string, cfg volume.Configuration) {
		for _, h := range engines {
			if h.id == cfg.Volume {
				out.Engines = append(out.Engines, c.engineStats(h))
			}
		}
	})
	return out
}

func (c *Control) poolStats(lp *localPool, out *statsRecord) poolStats {
	c.mu.Lock()
	pool, cause := lp.pool, lp.cause
	c.mu.Unlock()
	s := poolStats{ID: lp.record.ID, Cause: cause}
	if pool == nil {
		return s
	}
	info, err := pool.Info()
	if err != nil {
		s.Cause = err.Error()
		return s
	}
	s.Online, s.Kind, s.Direct = true, info.Kind, true
	// Rounded, so that a busy pool does not write to the cluster store all the time.
	const step = 16 << 20
	s.Total, s.Free, s.Reserved = info.Total, info.Free/step*step, info.Reserved
	s.Used = map[string]uint64{}
	for _, r := range info.Replicas {
		s.Used[r.Volume.String()] = r.Used / (1 << 20) * (1 << 20)
		s.Direct = s.Direct && r.Buffered == ""
		k := replicahost.Key{Volume: r.Volume, Pool: lp.record.ID}
		if err := c.host.Fault(k); err != nil {
			out.Faults = append(out.Faults, replicaFault{Volume: r.Volume, Pool: lp.record.ID, Text: err.Error()})
		}
		if _, known := c.view.get(volumeKey(r.Volume)); !known && !c.deleted(r.Volume) {
			s.Leftover = append(s.Leftover, "replica of unknown volume "+r.Volume.String()+": no record names it")
		}
	}
	for _, l := range info.Leftovers {
		s.Leftover = append(s.Leftover, l.Name+": "+l.Reason)
	}
	return s
}

func (c *Control) engineStats(h *held) engineStats {
	st := h.att.Status()
	c.mu.Lock()
	defer c.mu.Unlock()
	s := engineStats{
		Volume: h.id, Mode: h.mode, Phase: st.Phase.String(), Suspended: st.Suspended, Doubtful: st.Doubtful,
		Epoch: uint64(st.Record.Epoch), Generation: uint64(st.Record.Generation),
		Sent: (c.opts.Counters.Sent.Load() - h.sentAt) / (1 << 20) * (1 << 20), Copied: st.Copied,
	}
	missing := st.Doubtful
	for _, m := range st.Members {
		s.Members = append(s.Members, memberStats{
			Pool: m.Pool, State: m.State, Connected: m.Connected, OutOfSync: m.OutOfSync, Cause: causeOf(m),
		})
		if m.Connected {
			missing += m.OutOfSync
		}
	}
	s.Progress = h.copied.update(missing, time.Now())
	return s
}

func causeOf(m engine.MemberStatus) string {
	if m.InSync && m.State == "in-sync" {
		return ""
	}
	return m.Cause
}
