//! Two executors of one process.

use super::*;

#[test]
fn two_warm_executors_see_each_others_bytes() {
    let _alone = SPOKEN_FOR.write().unwrap_or_else(PoisonError::into_inner);
    let bench = Bench::alone_in_process(one_device(64));
    let looked = RefCell::new(Vec::new());
    // The host's memory is what all virtual devices are made of.
    let inventorize = |holding: Holding<'_>| {
        let mut request = bench.request(&shape([64, 64], 1), holding);
        let host = &mut request.inventory.host;
        host.available_bytes = host.total_bytes;
        OtherReservations::of_this_host(holding.reservation)
            .take_from(&mut request.inventory, true);
        let host = &request.inventory.host;
        looked.borrow_mut().push(host.total_bytes - host.available_bytes);
        Ok(request)
    };
    let work = Work::Generate(Box::new(job("a red circle", &shape([64, 64], 1))));
    let (mut first, mut second) = (bench.executor(), bench.executor());
    let self_tests = SelfTests::under(None);
    let one = supervise(&mut first, &self_tests, &inventorize, &work, None, &mut Nobody)
        .expect("it fits");
    let before = looked.borrow()[0];
    let planned: Bytes = one.plan.devices.iter().map(|device| device.peak_bytes).sum();
    let planned = planned + one.plan.host.peak_bytes;
    looked.borrow_mut().clear();
    supervise(&mut second, &self_tests, &inventorize, &work, None, &mut Nobody).expect("it fits");
    let others: Vec<Bytes> = looked.borrow_mut().drain(..).collect();
    assert!(others.iter().all(|taken| *taken >= before + planned), "{others:?} for {planned}");
    // And the first one the second's, but never its own.
    supervise(&mut first, &self_tests, &inventorize, &work, None, &mut Nobody).expect("it fits");
    let others: Vec<Bytes> = looked.borrow_mut().drain(..).collect();
    assert!(others.iter().all(|taken| *taken == before + planned), "{others:?} for {planned}");
    second.end();
    supervise(&mut first, &self_tests, &inventorize, &work, None, &mut Nobody).expect("it fits");
    assert!(looked.borrow().iter().all(|taken| *taken == before), "{:?}", looked.borrow());
    first.end();
}
