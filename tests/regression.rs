//! One test for each fault that was found after its feature was done, named by what went wrong, with
//! the issue in its comment. Nothing else: a test that belongs to a feature goes to its module.
