package store

import "sync"

// lane runs the operations of one kind of one replica, in batches, never two batches at once. Whatever waits
// when a batch begins is in it: that is how many syncs become one.
type lane struct {
	run   func(opList)
	start func(func()) // begins a goroutine, or calls at once in a synchronous pool

	mu      sync.Mutex
	waiting opList
	running bool
}

// push adds an operation and sees to it that it runs.
func (l *lane) push(op *Op) {
	l.mu.Lock()
	l.waiting.push(op)
	begin := !l.running
	l.running = true
	l.mu.Unlock()
	if begin {
		l.start(l.loop)
	}
}

func (l *lane) loop() {
	for {
		l.mu.Lock()
		batch := l.waiting
		l.waiting = opList{}
		if batch.head == nil {
			l.running = false
			l.mu.Unlock()
			return
		}
		l.mu.Unlock()
		l.run(batch)
	}
}
