// Package inside lets a test read and set what a package keeps to itself.
//
// A test that needs a driver is no part of the package that it tests, because the driver would be in the graph of every
// service that uses the package. Most such tests use what everybody can. A few look at what no caller sees, or break what
// nobody can break from outside, and those use this package.
package inside

import (
	"reflect"
	"unsafe"
)

// Field returns a pointer to an unexported field, by the names on the way to it. of is a pointer, or an interface with one.
func Field[T any](of any, names ...string) *T {
	v := reflect.ValueOf(of)
	for _, name := range names {
		for v.Kind() == reflect.Pointer || v.Kind() == reflect.Interface {
			v = v.Elem()
		}
		if v = v.FieldByName(name); !v.IsValid() {
			panic("inside: there is no field " + name)
		}
	}
	if v.Type().Size() != reflect.TypeFor[T]().Size() {
		panic("inside: " + names[len(names)-1] + " is a " + v.Type().String())
	}
	return (*T)(unsafe.Pointer(v.UnsafeAddr()))
}

// Option returns an option, which is a function that gets a pointer to a configuration of another package.
func Option[O any](set func(config any)) O {
	option := reflect.MakeFunc(reflect.TypeFor[O](), func(args []reflect.Value) []reflect.Value {
		set(args[0].Interface())
		return nil
	})
	return option.Interface().(O)
}
