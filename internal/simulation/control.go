package simulation

import (
	"time"

	"samovar/internal/fault"
	"samovar/internal/replication/engine"
	"samovar/internal/volume"
)

// control is the user, or the system above, who wants the volume attached: when no engine lives it starts one
// somewhere, after a while, again and again.
type control struct {
	w       *World
	off     bool
	looking int // attachments that read the record now
	backOff time.Duration
	stale   int // attachments in a row that ended because replicas and record do not fit
}

func (k *control) run() {
	w := k.w
	w.after(w.between(30*time.Millisecond, 200*time.Millisecond)+k.backOff, func() {
		if !k.off && k.looking == 0 && !k.alive() {
			k.attachSomewhere()
		}
		k.run()
	})
}

// alive tells whether some engine lives that holds the volume or tries to. One that is stopped, or that another has
// overtaken without success, does not count: a user attaches again, and the old one may still come back.
func (k *control) alive() bool {
	for _, m := range k.w.machines {
		for _, p := range m.engines {
			if !p.stopped && (p.phase < engine.Serving || p.epoch == k.w.store.current.Epoch) {
				return true
			}
		}
	}
	return false
}

// attachSomewhere starts an engine on some machine that is up.
func (k *control) attachSomewhere() {
	w := k.w
	m := w.machines[w.rng.IntN(len(w.machines))]
	if m.up {
		k.attachOn(m, nil)
	}
}

func (k *control) attachOn(m *machine, started func(*engineProcess)) {
	w := k.w
	if len(m.engines) > 0 && m.engines[0].phase < engine.Serving {
		return // one attachment at a time on a machine
	}
	booted := m.booted
	k.looking++
	w.store.look(m, func(status fault.Kind, record volume.Configuration) {
		k.looking--
		if status != fault.None || !m.up || m.booted != booted || k.off {
			return
		}
		p := w.attach(m, record)
		if started != nil {
			started(p)
		}
	})
}

// ended takes note that an engine has ended by itself.
func (k *control) ended(p *engineProcess) {
	w := k.w
	w.log("engine %d: ended: %v", p.number, p.reason)
	w.stats.Ended[p.reason]++
	p.kill(false)
	k.backOff = min(2*k.backOff+20*time.Millisecond, 500*time.Millisecond)
	if p.detaching || p.reason == fault.Fenced {
		k.backOff = 0
	}
	if p.reason != fault.Stale {
		k.stale = 0
	} else if k.stale++; k.stale >= 4 && !w.store.restored {
		// The last in-sync replica was rolled back: somebody has to decide.
		w.store.restored, w.store.newest = true, w.store.current
		w.after(0, k.operate)
	}
}

// operate plays the operator who finds that the cluster store came back from an old copy: all engines are ended,
// then the newest record is put back.
func (k *control) operate() {
	w := k.w
	if !w.store.restored {
		return
	}
	for _, m := range w.machines {
		m.killEngines(true)
	}
	k.stale = 0
	w.store.recover()
}

// detach asks a serving engine to detach.
func (p *engineProcess) detach() {
	if p.phase != engine.Serving || p.detaching {
		return
	}
	p.detaching = true
	p.client.quiet = true
	p.w.log("engine %d: told to detach", p.number)
	p.call(p.engine.Detach)
}
