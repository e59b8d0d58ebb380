package zookeeper

// Namespace is a view of a [Client] below a path: applications that share an
// ensemble, and modules of one that share a Client, keep their names apart by
// it. It has no session and no state of its own. What it returns is what the
// Client would return for the longer path.
//
// Locks of keys ([Client.Locker]) have a root of their own, Config.Root.
type Namespace struct {
	c      *Client
	prefix string
}

// Namespace returns the view below an absolute path under the chroot, such as
// "/billing". A path that is none makes the calls of what comes from it fail.
func (c *Client) Namespace(path string) Namespace { return Namespace{c, path} }

// Namespace returns the view below a path in this one.
func (n Namespace) Namespace(path string) Namespace { return Namespace{n.c, n.prefix + path} }

// Mutex is [Client.Mutex] in the namespace.
func (n Namespace) Mutex(path string, opts ...MutexOption) *Mutex {
	return n.c.Mutex(n.prefix+path, opts...)
}

// ReentrantMutex is [Client.ReentrantMutex] in the namespace.
func (n Namespace) ReentrantMutex(path string, opts ...MutexOption) *ReentrantMutex {
	return n.c.ReentrantMutex(n.prefix+path, opts...)
}

// RWMutex is [Client.RWMutex] in the namespace.
func (n Namespace) RWMutex(path string) *RWMutex { return n.c.RWMutex(n.prefix + path) }

// Semaphore is [Client.Semaphore] in the namespace.
func (n Namespace) Semaphore(path string, permits int) *Semaphore {
	return n.c.Semaphore(n.prefix+path, permits)
}

// Election is [Client.Election] in the namespace.
func (n Namespace) Election(path, candidate string, opts ...ElectionOption) *Election {
	return n.c.Election(n.prefix+path, candidate, opts...)
}

// Queue is [Client.Queue] in the namespace.
func (n Namespace) Queue(path string, opts ...QueueOption) *Queue {
	return n.c.Queue(n.prefix+path, opts...)
}

// Register is [Client.Register] in the namespace.
func (n Namespace) Register(path string) *Register { return n.c.Register(n.prefix + path) }
